#!/usr/bin/env python3
"""What documents show is what the program prints: every `$ ` line of a ```console block is run, the lines below it are
its output.

usage: docs.py DBO ROOT FILE...
DBO_ACCEPT=1 writes the outputs into the documents instead, and skips.
"""
import os
import subprocess
import sys
import tempfile


def run(command, folder, dbo):
    env = dict(os.environ, PATH=os.path.dirname(os.path.abspath(dbo)) + ":" + os.environ["PATH"], LC_ALL="C")
    # bash without pipefail: `| head` may end a program early.
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    return [line.rstrip() for line in done.stdout.splitlines()]


def renewed(path, folder, dbo):
    """The lines of a document, and as they should be."""
    old = open(path).read().splitlines()
    new, at = [], 0
    while at < len(old):
        new.append(old[at])
        at += 1
        if old[at - 1] != "```console":
            continue
        while old[at] != "```":
            if not old[at].startswith("$ "):
                at += 1  # output, which its command gives anew
                continue
            command = [old[at]]
            while command[-1].endswith("\\"):
                at += 1
                command.append(old[at])
            at += 1
            new += command + run("\n".join(command)[2:], folder, dbo)
    return old, new


def main():
    dbo, root, *paths = sys.argv[1:]
    accept, stale = os.environ.get("DBO_ACCEPT") == "1", 0
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(os.path.abspath(root), "examples"), os.path.join(folder, "examples"))
            os.symlink(os.path.join(os.path.abspath(root), "tests"), os.path.join(folder, "tests"))
            old, new = renewed(path, folder, dbo)
        if old == new:
            continue
        if accept:
            open(path, "w").write("\n".join(new) + "\n")
            continue
        stale += 1
        for got, shown in zip(new, old):
            if got != shown:
                print(f"{path}: shows\n  {shown}\nprinted is\n  {got}")
                break
        else:
            print(f"{path}: {len(old)} lines, {len(new)} with what is printed")
        print("DBO_ACCEPT=1 writes what is printed into it")
    if accept:
        sys.exit(77)
    print(f"{len(paths) - stale} of {len(paths)} documents show what is printed")
    sys.exit(1 if stale else 0)


main()
