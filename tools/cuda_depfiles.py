#!/usr/bin/env python3
"""Makes ninja rebuild a .cu file when a header it includes changes.

Run by Meson after it has written build.ninja. Meson 1.0 (Debian 12) names a dependency file in its rule for nvcc but does
not ask nvcc for one, so that objects outlive the headers they were built from.
"""
import os
import re
import sys


def patched(text):
    """The text with dependency files asked for in the rules that lack them."""
    rule = re.compile(r"^(rule cuda_COMPILER\w*\n command = )(.*)$", re.MULTILINE)

    def ask(match):
        command = match.group(2)
        if " -MF " in command or " $ARGS " not in command:
            return match.group(0)
        return match.group(1) + command.replace(" $ARGS ", " $ARGS -MD -MF $DEPFILE ")

    return rule.sub(ask, text)


def main():
    path = os.path.join(os.environ["MESON_BUILD_ROOT"], "build.ninja")
    with open(path, encoding="utf-8") as file:
        old = file.read()
    new = patched(old)
    if "-MF $DEPFILE" not in new.partition("rule cuda_COMPILER")[2].partition("\n\n")[0]:
        sys.exit("cuda_depfiles: no rule for nvcc that could be given a dependency file in " + path)
    if new != old:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
