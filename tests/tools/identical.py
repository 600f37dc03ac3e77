#!/usr/bin/env python3
"""Builds `dbo` alone with other compilers and optimisation levels and compares every file it writes, byte for byte.

usage: identical.py ROOT BUILD_FOLDER DBO EXAMPLE...     exit 77 (skipped) when there is no clang++
"""
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile

VARIANTS = {
    "clang-O3": ("clang++", "3"),
    "gcc-O0": ("g++", "0"),
}


def build(root, folder, name, compiler, level):
    where = os.path.join(folder, name)
    environment = dict(os.environ, CXX=compiler)
    if not os.path.exists(os.path.join(where, "build.ninja")):
        subprocess.run(["meson", "setup", where, root, "-Dgpu=disabled", f"-Doptimization={level}", "-Ddebug=false"],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", where, "tools/dbo"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(where, "tools", "dbo")


def outputs(dbo, example, folder):
    run = subprocess.run([dbo, "simulate", example, "--out", folder, "--json"], capture_output=True, check=True)
    open(os.path.join(folder, "stdout"), "wb").write(run.stdout)


def main():
    root, folder, dbo, examples = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    missing = [compiler for compiler, _ in VARIANTS.values() if shutil.which(compiler) is None]
    if missing:
        print(f"not compared: {', '.join(missing)} is not installed")
        sys.exit(77)
    programs = {name: build(root, folder, name, *how) for name, how in VARIANTS.items()}
    bad = files = 0
    for example in examples:
        with tempfile.TemporaryDirectory() as scratch:
            reference = os.path.join(scratch, "reference")
            outputs(dbo, example, reference)
            for name, program in programs.items():
                other = os.path.join(scratch, name)
                outputs(program, example, other)
                for file in sorted(os.listdir(reference)):
                    files += 1
                    if not filecmp.cmp(os.path.join(reference, file), os.path.join(other, file), shallow=False):
                        bad += 1
                        print(f"{os.path.basename(example)}: {file} of {name} differs")
    print(f"{files - bad} of {files} files are identical")
    sys.exit(1 if bad or not files else 0)


main()
