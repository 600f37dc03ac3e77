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


def main():
    dbo, examples = sys.argv[1:]
    problems = []
    for name in ("teaching", "deepseek-v3-decode-2x8-h200", "deepseek-v3-prefill-vllm-ht", "schedule-in-notation"):
        config = os.path.join(examples, name + ".json")
        with tempfile.TemporaryDirectory() as folder:
            found = run(dbo, "optimise", config, "--json", "--out", folder)
            if found.returncode != 0:
                problems.append(f"{name}: exit {found.returncode}: {found.stderr}")
                continue
            result = json.loads(found.stdout)
            if result["period_ns"] > result["best_builtin"]["period_ns"]:
                problems.append(f"{name}: slower than {result['best_builtin']}")
            if result["period_ns"] < result["bound_ns"] or result["proved"] != (result["gap_ns"] == 0):
                problems.append(f"{name}: period, bound and proof do not fit: {result}")
            written = json.load(open(os.path.join(folder, "config.json")))
            if written["overlap"]["schedule"] != result["notation"]:
                problems.append(f"{name}: the config has another schedule")
            summary = json.loads(run(dbo, "simulate", os.path.join(folder, "config.json"), "--json").stdout)
            for key in ("period_ns", "bound_ns", "plan_hash"):
                if summary[key] != result[key]:
                    problems.append(f"{name}: simulate gives {key} {summary[key]}, optimise {result[key]}")
            if run(dbo, "check", os.path.join(folder, "plan.json")).returncode != 0:
                problems.append(f"{name}: the plan is not clean")
            again = run(dbo, "optimise", config, "--json")
            if again.stdout != found.stdout:
                problems.append(f"{name}: two runs differ")
    refused = run(dbo, "optimise", config, "--in-flight", "3")
    if refused.returncode != 2 or "has 2 buffers" not in refused.stderr:
        problems.append(f"--in-flight 3: exit {refused.returncode}: {refused.stderr}")
    print("\n".join(problems) if problems else "optimise says what simulate says")
    sys.exit(1 if problems else 0)


main()
