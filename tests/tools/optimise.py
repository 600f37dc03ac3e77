#!/usr/bin/env python3
"""`dbo optimise` end to end: what it says is what `dbo simulate` gives the config it writes.

usage: optimise.py DBO EXAMPLES
"""
import json
import os
import subprocess
import sys
import tempfile


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# Ended at once, the search has only the built-ins' orders, and one of them is faster as it is.
SHARED = {"model": "deepseek-v3", "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 2},
          "parallel": {"data": 16, "expert": 16},
          "workload": {"phase": "decode", "tokens_per_rank": 512, "context_tokens": 4096},
          "overlap": {"schedule": "vllm-ht", "transport": "ht", "sm_control": "none"}, "execution": {"mode": "eager"}}


def main():
    dbo, examples = sys.argv[1:]
    problems = []
    made = tempfile.TemporaryDirectory()
    shared = os.path.join(made.name, "shared.json")
    with open(shared, "w") as out:
        json.dump(SHARED, out)
    cases = [(name, os.path.join(examples, name + ".json"), ())
             for name in ("teaching", "deepseek-v3-decode-2x8-h200", "deepseek-v3-prefill-vllm-ht",
                          "schedule-in-notation")]
    for name, config, more in cases + [("shared", shared, ("--time-limit", "1e-6"))]:
        with tempfile.TemporaryDirectory() as folder:
            found = run(dbo, "optimise", config, "--json", "--out", folder, *more)
            if found.returncode != 0:
                problems.append(f"{name}: exit {found.returncode}: {found.stderr}")
                continue
            result = json.loads(found.stdout)
            if result["period_ns"] > result["best_builtin"]["period_ns"]:
                problems.append(f"{name}: slower than {result['best_builtin']}")
            if result["period_ns"] < result["bound_ns"] or result["proved"] != (result["gap_ns"] == 0):
                problems.append(f"{name}: period, bound and proof do not fit: {result}")
            written = json.load(open(os.path.join(folder, "config.json")))
            if (result["schedule"] is None) != (name != "shared"):
                problems.append(f"{name}: the plan is of {result['schedule']}")
            if written["overlap"]["schedule"] != (result["schedule"] or result["notation"]):
                problems.append(f"{name}: the config has another schedule")
            summary = json.loads(run(dbo, "simulate", os.path.join(folder, "config.json"), "--json").stdout)
            for key in ("period_ns", "bound_ns", "plan_hash"):
                if summary[key] != result[key]:
                    problems.append(f"{name}: simulate gives {key} {summary[key]}, optimise {result[key]}")
            checked = run(dbo, "check", os.path.join(folder, "plan.json"))
            # Without SMs set aside, that is what is warned of.
            if checked.returncode != (1 if name == "shared" else 0) or " error" in checked.stdout.replace("0 errors", ""):
                problems.append(f"{name}: the plan is not clean: {checked.stdout}")
            again = run(dbo, "optimise", config, "--json", *more)
            if again.stdout != found.stdout:
                problems.append(f"{name}: two runs differ")
    refused = run(dbo, "optimise", os.path.join(examples, "teaching.json"), "--in-flight", "3")
    if refused.returncode != 2 or "has 2 buffers" not in refused.stderr:
        problems.append(f"--in-flight 3: exit {refused.returncode}: {refused.stderr}")
    print("\n".join(problems) if problems else "optimise says what simulate says")
    sys.exit(1 if problems else 0)


main()
