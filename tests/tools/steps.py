#!/usr/bin/env python3
"""`dbo decide` and `dbo simulate` of a sequence of steps: totals, the file form, log lines, and where they go.

usage: steps.py DBO
"""
import json
import os
import subprocess
import sys
import tempfile

DECODE_64 = {"ranks": [{"requests": [{"query": 1, "seq": 100, "count": 64}], "repeat": 2}]}
DECODE_20 = {"ranks": [{"requests": [{"query": 1, "seq": 100, "count": 20}], "repeat": 2}]}
ONE_IDLE = {"ranks": [{"requests": [{"query": 1, "seq": 100, "count": 64}]}, {"requests": []}]}
STEPS = [DECODE_64, DECODE_20, ONE_IDLE, DECODE_64]

# One layer of T9: split 450 us, one batch 620 us.
CONFIG = {
    "model": {"layers": 1, "dense_layers": 0},
    "parallel": {"data": 2, "expert": 2},
    "workload": {"steps": STEPS},
    "costs": {"source": "fixed", "A0_us": 40, "A1_us": 60, "MLP_us": 80, "S_us": 20, "D": {"wire_us": 60},
              "C": {"wire_us": 70}},
}


def run(dbo, *args):
    return subprocess.run([dbo, *args], capture_output=True, text=True, timeout=60)


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, not {want!r}")


def check_one_step_commands(dbo, listed, filed, single):
    """Commands that work on one step refuse a sequence instead of taking its first step; a sequence of one is fine."""
    for command, args in (("plan", []), ("optimise", []), ("tune", ["--transport", "ll", "--ubatches", "2"])):
        for path in (listed, filed):
            got = run(dbo, command, path, *args)
            expect(f"{command} of a sequence", (got.returncode, got.stdout), (2, ""))
            words = f"/workload: is a sequence of {len(STEPS)} steps, {command} works on one"
            expect(f"{command} says so", words in got.stderr, True)
        one = run(dbo, command, single, *args)
        expect(f"{command} of a sequence of one: {one.stderr}", one.returncode, 0)


def main():
    dbo = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        listed, filed = os.path.join(folder, "listed.json"), os.path.join(folder, "filed.json")
        json.dump(CONFIG, open(listed, "w"))
        with open(os.path.join(folder, "steps.jsonl"), "w") as file:
            file.writelines(json.dumps(step) + "\n" for step in STEPS)
        json.dump(CONFIG | {"workload": {"steps_file": "steps.jsonl"}}, open(filed, "w"))

        single = os.path.join(folder, "single.json")
        json.dump(CONFIG | {"model": {"layers": 4, "dense_layers": 0}, "workload": {"steps": STEPS[:1]}},
                  open(single, "w"))
        check_one_step_commands(dbo, listed, filed, single)

        decided = run(dbo, "decide", listed, "--json")
        report = json.loads(decided.stdout)
        expect("reasons", [step["reason"] for step in report["steps"]],
               ["split", "below-threshold", "idle-rank", "split"])
        expect("times", [step["step_ns"] for step in report["steps"]], [450000, 620000, 620000, 450000])
        expect("baseline", [step["baseline_step_ns"] for step in report["steps"]], [620000] * 4)
        expect("ubatches", report["steps"][3]["ranks"][1]["ubatches"][1]["tokens"], [32, 64])
        total = report["total"]
        tokens = 128 + 40 + 64 + 128
        expect("split", total["split"], 2)
        expect("refused", total["refused"], {"idle-rank": 1, "below-threshold": 1})
        expect("tokens", total["tokens"], tokens)
        expect("rate", round(total["tokens_per_s"]), round(tokens / 2140e-6))
        expect("rate a GPU", round(total["tokens_per_s_per_gpu"]), round(tokens / 2140e-6 / 2))
        expect("rate without", round(total["baseline_tokens_per_s"]), round(tokens / 2480e-6))
        # Splitting always gains at these costs: the step of 20 tokens a rank too.
        expect("best", (total["best_thresholds"]["decode_token_threshold"], total["best_thresholds"]["split"]), (2, 3))

        out = os.path.join(folder, "out")
        expect("file form", run(dbo, "decide", filed, "--json").stdout, decided.stdout)
        expect("simulate", run(dbo, "simulate", listed, "--json", "--out", out).stdout, decided.stdout)
        expect("summary", open(os.path.join(out, "summary.json")).read(), decided.stdout)

        logged = run(dbo, "decide", listed, "--json", "--log-steps")
        expect("JSON beside the log", logged.stdout, decided.stdout)
        lines = logged.stderr.splitlines()
        expect("lines", len(lines), 4)
        expect("line", lines[1].split(" text=")[0],
               "dbo step=1 split=0 reason=below-threshold ubatches=1 votes=0/2 tokens=40 min=20 max=20 padded=none "
               "graph=none comm_sms=0 compute_sms=132")
        table = run(dbo, "decide", listed, "--log-steps")
        expect("log on stdout", table.stdout.splitlines()[:4], lines)
        expect("total line", "split         2 of 4 steps; refused: idle-rank 1, below-threshold 1" in table.stdout, True)

        # The same bytes for any number of threads, with costs that are worked out and steps of many sizes.
        many = [{"ranks": [{"requests": [{"query": 1, "seq": 100 + 10 * n, "count": 8 * n}], "repeat": 2}]}
                for n in range(1, 25)]
        json.dump(CONFIG | {"model": "deepseek-v2-lite", "costs": {"source": "analytical"},
                            "workload": {"steps": many}}, open(listed, "w"))
        alone = run(dbo, "simulate", listed, "--json", "--jobs", "1")
        expect("exit of one thread", alone.returncode, 0)
        expect("sizes", len({step["step_ns"] for step in json.loads(alone.stdout)["steps"]}), 24)
        for jobs in ("2", "7"):
            expect(f"{jobs} threads", run(dbo, "simulate", listed, "--json", "--jobs", jobs).stdout, alone.stdout)
        expect("too many threads", run(dbo, "simulate", listed, "--jobs", "2000").returncode, 2)

        with open(os.path.join(folder, "steps.jsonl"), "a") as file:
            file.write('{"ranks": [{"requests": [{"query": 9, "seq": 8}], "repeat": 2}]}\n')
        bad = run(dbo, "decide", filed)
        expect("exit", bad.returncode, 2)
        expect("place", "steps.jsonl:5: /ranks/0/requests/0/query" in bad.stderr, True)
    print("sequences are decided, priced and logged")


main()
