#!/usr/bin/env python3
"""`dbo compare` must not pass what it could not look at: nothing joined, ops lost, a baseline of another config.

usage: compare.py DBO EXAMPLES
"""
import json
import os
import subprocess
import sys
import tempfile

problems = []


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def expect(got, code, what):
    if got.returncode != code:
        problems.append(f"{what}: exit {got.returncode}: {got.stdout[-600:]}{got.stderr}")


def changed(path, to, change):
    """A copy of a trace with `change` made to its list of slices; what refers to them goes."""
    trace = json.load(open(path))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ph"] == "M"] + change(slices)
    json.dump(trace, open(to, "w"))
    return to


def main():
    dbo, examples = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as root:
        one, two = (os.path.join(root, name) for name in ("one", "two"))
        run(dbo, "simulate", os.path.join(examples, "teaching.json"), "--out", one)
        run(dbo, "simulate", os.path.join(examples, "deepseek-v3-decode-2x8-h200.json"), "--out", two)
        pred = os.path.join(one, "predicted.trace.json")
        expect(run(dbo, "compare", pred, pred), 0, "a trace with itself")
        other = changed(pred, os.path.join(root, "other.json"), lambda slices: [
            {**e, "args": {**e["args"], "layer": e["args"]["layer"] + 1000}} for e in slices])
        alone = changed(pred, os.path.join(root, "alone.json"), lambda slices: slices)
        for predicted in (pred, alone):  # with its plan beside it, and without one
            expect(run(dbo, "compare", predicted, other), 1, "nothing joined")
        lost = changed(pred, os.path.join(root, "lost.json"), lambda slices: slices[:3] + slices[4:])
        for predicted in (pred, alone):
            expect(run(dbo, "compare", predicted, lost), 1, "an op lost")
        expect(run(dbo, "compare", pred, pred, "--baseline", os.path.join(two, "baseline.trace.json")), 2,
               "a baseline of another config")
    for problem in problems:
        print("FAIL:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
