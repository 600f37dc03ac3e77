"""The held-out suite is what its seed draws, to the byte: nobody took a config out or put one in."""

import os
import subprocess
import sys

suites = sys.argv[1]
with open(os.path.join(suites, "held-out.json"), encoding="utf-8") as file:
    text = file.read()
drawn = subprocess.run([sys.executable, os.path.join(suites, "draw.py")], capture_output=True, text=True, check=True).stdout
if drawn != text:
    line = next(i for i, (a, b) in enumerate(zip(drawn.splitlines() + [""], text.splitlines() + [""]), 1) if a != b)
    sys.exit(f"held-out.json differs from what draw.py draws, first in line {line}")
print("1 passed, 0 failed, 0 skipped")
