#!/usr/bin/env python3
"""Runs `dbo check` on the minimal plans of tests/plans.

usage: check_plans.py DBO FOLDER

NAME.json begins with comment lines `// finds CODE SEVERITY: TEXT`: what is found, no more, in any order; TEXT is part of
the finding's text. NAME.fixed.json is the same plan put right, and clean. Every code a plan can show has a plan.
"""
import json
import os
import re
import subprocess
import sys

PLAN_CODES = {"F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F10", "F11", "F14", "F15", "F17", "F18", "capture"}


def check(dbo, path):
    run = subprocess.run([dbo, "check", path, "--json"], capture_output=True, text=True, timeout=20)
    if run.returncode not in (0, 1):
        return run.returncode, [], run.stderr
    return run.returncode, json.loads(run.stdout)["findings"], run.stderr


def judge(dbo, path):
    code, findings, stderr = check(dbo, path)
    got = [f"{f['code']} {f['severity']}: {f['text']}" for f in findings]
    if path.endswith(".fixed.json"):
        return None if code == 0 and not got else f"is not clean (exit {code}): {got} {stderr}"
    wanted = [tuple(w) for w in re.findall(r"^// finds (\S+ \S+): (.*)$", open(path).read(), re.M)]
    if not wanted:
        return "says nothing of what it finds"
    if code != 1:
        return f"exit {code}, not 1: {stderr}"
    rest = list(got)
    for head, text in wanted:
        hit = next((g for g in rest if g.startswith(head + ": ") and text in g), None)
        if hit is None:
            return f"lacks {head}: {text!r}; has {rest}"
        rest.remove(hit)
    return f"also finds {rest}" if rest else None


def main():
    dbo, folder = sys.argv[1:]
    names = sorted(n for n in os.listdir(folder) if n.endswith(".json"))
    bad = 0
    for name in names:
        wrong = judge(dbo, os.path.join(folder, name))
        twin = name.replace(".json", ".fixed.json")
        if not wrong and not name.endswith(".fixed.json") and twin not in names:
            wrong = "has no corrected twin"
        if wrong:
            bad += 1
            print(f"{name}: {wrong}")
    missing = PLAN_CODES - {re.split(r"[-.]", n)[0] for n in names}
    if missing:
        print("no plan shows", *sorted(missing))
    print(f"{len(names) - bad} of {len(names)} plans as expected")
    sys.exit(1 if bad or missing or not names else 0)


main()
