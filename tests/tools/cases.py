#!/usr/bin/env python3
"""Runs the case files of tests/cases against `dbo`.

usage: cases.py DBO FILE...

A case is {"name", "config", "expect"}. `expect` with "exit" and "stderr_has" is of a config that must be refused, with
nothing written. Otherwise its keys are compared with the JSON that `dbo simulate --json` prints (`dbo decide --json` for
decide.json); "ops" are all slices of rank 0 in the predicted trace, wires aside.
"""
import json
import os
import subprocess
import sys
import tempfile


def difference(want, got, at=""):
    """The first place where `got` lacks or contradicts `want`; None when there is none."""
    if isinstance(want, dict) and isinstance(got, dict):
        for key, value in want.items():
            found = difference(value, got[key], f"{at}/{key}") if key in got else f"{at}/{key} is missing"
            if found:
                return found
        return None
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for i, (a, b) in enumerate(zip(want, got)):
            found = difference(a, b, f"{at}/{i}")
            if found:
                return found
        return None
    return None if want == got and type(want) is type(got) else f"{at} is {got!r}, not {want!r}"


def slices(path):
    out = []
    for event in json.load(open(path))["traceEvents"]:
        args = event.get("args", {})
        if event.get("ph") == "X" and "op" in args and args["rank"] == 0 and not args["op"].endswith(".wire"):
            start = round(event["ts"] * 1000)
            out.append((args["op"], args["ubatch"], args["layer"], start, start + round(event["dur"] * 1000)))
    return sorted(out)


def check(dbo, kind, case, folder):
    config, out, want = os.path.join(folder, "config.json"), os.path.join(folder, "out"), dict(case["expect"])
    json.dump(case["config"], open(config, "w"))
    command = [dbo, "decide", config, "--json"] if kind == "decide" else [dbo, "simulate", config, "--out", out, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "exit" in want:
        if run.returncode != want["exit"]:
            return f"exit {run.returncode}, not {want['exit']}"
        if want["stderr_has"] not in run.stderr:
            return f"stderr lacks {want['stderr_has']!r}: {run.stderr!r}"
        return "files were written" if os.path.exists(out) else None
    if run.returncode != 0:
        return f"exit {run.returncode}: {run.stderr}"
    ops = want.pop("ops", None)
    found = difference(want, json.loads(run.stdout))
    if found or ops is None:
        return found
    expected = sorted((o["op"], o["ubatch"], o["layer"], o["start_ns"], o["end_ns"]) for o in ops)
    got = slices(os.path.join(out, "predicted.trace.json"))
    return None if got == expected else f"slices differ: missing {sorted(set(expected) - set(got))[:3]}, extra {sorted(set(got) - set(expected))[:3]}"


def main():
    bad = total = 0
    for path in sys.argv[2:]:
        kind = os.path.splitext(os.path.basename(path))[0]
        for case in json.load(open(path)):
            total += 1
            with tempfile.TemporaryDirectory() as folder:
                found = check(sys.argv[1], kind, case, folder)
            if found:
                bad += 1
                print(f"{kind}: {case['name']}: {found}")
    print(f"{total - bad} of {total} cases as expected")
    sys.exit(1 if bad or not total else 0)


main()
