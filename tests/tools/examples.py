#!/usr/bin/env python3
"""Simulates every example and checks what it writes: all files there, a summary with every key of the contract, traces
that keep the written rules, the same bytes in a second run, and nothing about this machine in them.

usage: examples.py DBO CHECK_TRACE EXAMPLE...
"""
import filecmp
import json
import os
import re
import subprocess
import sys
import tempfile

FILES = ["summary.json", "plan.json", "baseline.plan.json", "predicted.trace.json", "baseline.trace.json", "timeline.svg"]
KEYS = ["plan_hash", "baseline_plan_hash", "step_ns", "baseline_step_ns", "speedup", "period_ns", "exposed_comm_ns", "lanes", "windows",
        "bubbles", "tokens_per_s_per_gpu", "baseline_tokens_per_s_per_gpu", "memory", "decision", "bound_ns", "assumptions"]
MACHINE = re.compile(rb"/(home|usr|tmp|build)/|g\+\+|clang|GNU")


def problems_of(dbo, check_trace, example, scratch):
    first, second = os.path.join(scratch, "a"), os.path.join(scratch, "b")
    for folder in (first, second):
        run = subprocess.run([dbo, "simulate", example, "--out", folder], capture_output=True, text=True, timeout=60)
        if run.returncode != 0:
            yield f"exit {run.returncode}: {run.stderr}"
            return
    for file in FILES:
        path = os.path.join(first, file)
        if not os.path.exists(path):
            yield f"{file} is missing"
            continue
        if not filecmp.cmp(path, os.path.join(second, file), shallow=False):
            yield f"{file} differs between two runs"
        found = MACHINE.search(open(path, "rb").read())
        if found:
            yield f"{file} holds {found.group(0)!r}"
        if file.endswith(".trace.json"):
            check = subprocess.run([check_trace, path], capture_output=True, text=True)
            if check.returncode != 0:
                yield f"{file}: {check.stdout.strip()[:300]}"
    summary = json.load(open(os.path.join(first, "summary.json")))
    for key in KEYS:
        if key not in summary:
            yield f"summary.json lacks {key}"
    if summary["step_ns"] <= 0 or summary["bound_ns"] > summary["period_ns"]:
        yield "summary.json: no step, or a period below its bound"
    memory = summary["memory"]
    if memory is not None and not memory["fits"]:
        yield f"takes {memory['total_bytes']} bytes of a GPU's {memory['hbm_bytes']}"
    plan = json.load(open(os.path.join(first, "plan.json")))
    if plan["hash"] != summary["plan_hash"]:
        yield "plan.json and summary.json have different hashes"


def main():
    bad = 0
    for example in sys.argv[3:]:
        with tempfile.TemporaryDirectory() as scratch:
            for problem in problems_of(sys.argv[1], sys.argv[2], example, scratch):
                bad += 1
                print(f"{os.path.basename(example)}: {problem}")
    print(f"{len(sys.argv) - 3} examples, {bad} problems")
    sys.exit(1 if bad or len(sys.argv) == 3 else 0)


main()
