#!/usr/bin/env python3
"""Checks who includes whom, where CUDA headers appear, and that headers which cost seconds stay in few files.

usage: layers.py ROOT
"""
import os
import re
import sys

# folder -> folders it may include besides itself and sim/base
ALLOWED = {
    "sim/base": [],
    "sim/model": [],
    "sim/plan": [],
    "sim/batch": ["sim/model"],
    "sim/config": ["sim/model", "sim/batch"],
    "sim/sched": ["sim/config", "sim/model", "sim/batch", "sim/plan"],
    "sim/cost": ["sim/model", "sim/plan"],
    "sim/engine": ["sim/plan", "sim/cost", "traces"],
    "sim/search": ["sim/config", "sim/model", "sim/batch", "sim/plan", "sim/sched", "sim/cost", "sim/engine"],
    "traces": ["sim/plan"],
    "kernels": [],
    "runtime": ["sim/plan", "traces", "kernels"],
    "validate": ["sim/config", "sim/model", "sim/batch", "sim/plan", "sim/sched", "sim/cost", "sim/engine", "sim/search", "traces",
                 "kernels", "runtime"],
}
FREE = ("tools", "tests")
CUDA = re.compile(r"^(cuda|cublas|nccl|cupti)")
CUDA_FOLDERS = re.compile(r"^(kernels/|runtime/cuda/|validate/cuda/|tests/.*cuda/|tools/dbo_gpu)")
# Headers that cost seconds to compile, and the files that may pay for them.
HEAVY = {
    "nlohmann/json.hpp": r"^sim/base/json\.cpp$",
    "CLI/CLI.hpp": r"^tools/cli\.cpp$",
    "boost/graph/": r"^sim/(plan/plan_graph|search/.*)\.cpp$",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def folder_of(path):
    best = ""
    for folder in list(ALLOWED) + list(FREE):
        if (path == folder or path.startswith(folder + "/")) and len(folder) > len(best):
            best = folder
    return best


def main():
    root = sys.argv[1]
    problems, files = [], 0
    for top in ("sim", "traces", "kernels", "runtime", "validate", "tools", "tests"):
        for folder, subfolders, names in os.walk(os.path.join(root, top)):
            subfolders[:] = sorted(d for d in subfolders if d != "node_modules")
            for name in sorted(names):
                if not name.endswith((".h", ".cpp", ".cu", ".cuh")):
                    continue
                path = os.path.relpath(os.path.join(folder, name), root)
                files += 1
                own = folder_of(path)
                for number, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
                    found = INCLUDE.match(line)
                    if not found:
                        continue
                    target = found.group(1)
                    where = f"{path}:{number}: includes {target}"
                    other = folder_of(target)
                    if other and own not in FREE and other != own and other != "sim/base" and other not in ALLOWED[own]:
                        problems.append(f"{where}: {own} may not include {other}")
                    if CUDA.match(target) and not CUDA_FOLDERS.match(path):
                        problems.append(f"{where}: CUDA headers belong in kernels/, runtime/cuda/, validate/cuda/ and GPU tests")
                    for header, allowed in HEAVY.items():
                        if target.startswith(header) and not re.match(allowed, path):
                            problems.append(f"{where}: only files matching {allowed} may include it")
    print("\n".join(problems) if problems else f"{files} files keep their layers")
    sys.exit(1 if problems or files == 0 else 0)


main()
