#!/usr/bin/env python3
"""Sums up a `meson test` run, and programs run besides: test cases of doctest programs, whole programs of the others.
Reasons of skipped ones first, `N passed, N failed, N skipped` last. Exit 1 when anything failed.

  test_summary.py TESTLOG [NAME STATUS OUTPUT]..."""
import json
import re
import sys

CASES = re.compile(r"test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped")


def results(args):
    """Every test as meson logs it; a program run besides by its exit status and what it printed."""
    for line in open(args[0]):
        yield json.loads(line)
    for name, status, output in zip(args[1::3], args[2::3], args[3::3]):
        with open(output, errors="replace") as file:
            yield {"name": name, "result": "OK" if status == "0" else "FAIL with exit status " + status,
                   "stdout": file.read()}


def main():
    passed = failed = skipped = 0
    for test in results(sys.argv[1:]):
        out = test.get("stdout", "") or ""
        cases = CASES.findall(re.sub(r"\x1b\[[0-9;]*m", "", out))
        if test["result"] == "SKIP":
            skipped += 1
            reason = (out.strip().splitlines() or (test.get("stderr") or "").strip().splitlines() or ["no reason given"])[-1]
            print(f"skipped {test['name']}: {reason}")
        elif test["result"] not in ("OK", "EXPECTEDFAIL"):
            bad = sum(int(c[2]) for c in cases)
            passed += sum(int(c[1]) for c in cases)
            failed += max(bad, 1)
            print(f"failed {test['name']}: {test['result']}")
        elif cases:
            passed += sum(int(c[1]) for c in cases)
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
