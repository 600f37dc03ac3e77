#!/usr/bin/env python3
"""Puts the tables that the accuracy programs print between their marks in docs/accuracy.md.

usage: accuracy_tables.py BUILD DOC
"""
import re
import subprocess
import sys

PROGRAMS = {"steps": "tests/sim/search/step_accuracy", "parts": "tests/sim/search/part_accuracy",
            "kernels": "tests/sim/cost/cost_accuracy", "overlap": "tests/sim/engine/interference_accuracy"}


def main():
    build, path = sys.argv[1:]
    with open(path) as file:
        text = file.read()
    for name, program in PROGRAMS.items():
        table = subprocess.run([f"{build}/{program}"], capture_output=True, text=True, check=True).stdout
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, found = block.subn(lambda m: m[1] + table + m[2], text)
        if found != 1:
            sys.exit(f"{path}: {found} places for {name}, not 1")
    with open(path, "w") as file:
        file.write(text)


main()
