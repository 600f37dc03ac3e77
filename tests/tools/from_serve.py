#!/usr/bin/env python3
"""`dbo from-serve` end to end: what it prints is a config that runs, and what a server refuses is exit 1.

usage: from_serve.py DBO
"""
import json
import os
import subprocess
import sys
import tempfile

VLLM = "vllm serve deepseek-ai/DeepSeek-V2-Lite --data-parallel-size 8 --enable-expert-parallel --enable-dbo "
SGLANG = ("python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V2-Lite --tp 8 --dp 8 "
          "--enable-dp-attention --enable-two-batch-overlap ")
COMMANDS = (
    (VLLM + "--all2all-backend deepep_low_latency --max-num-seqs 128", 0, "vllm-ll", "ll"),
    (VLLM + "--all2all-backend deepep_high_throughput", 0, "vllm-ht", "ht"),
    (VLLM, 1, "vllm-ll", "ll"),
    (SGLANG + "--moe-a2a-backend deepep --cuda-graph-bs 64 128", 0, "sglang-decode", "ll"),
    (SGLANG + "--moe-a2a-backend deepep --disaggregation-mode prefill", 0, "sglang-prefill", "ht"),
    (SGLANG, 0, "sglang-decode", "ll"),
    (SGLANG + "--moe-a2a-backend deepep --moe-dense-tp-size 4", 1, "sglang-decode", "ll"),
    (VLLM + "--all2all-backend deepep_low_latency --enabel-eplb", 1, "vllm-ll", "ll"),
)

problems = []


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def expect(holds, what):
    if not holds:
        problems.append(what)


def main():
    dbo = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        for line, code, schedule, transport in COMMANDS:
            made = run(dbo, "from-serve", line)
            expect(made.returncode == code, f"{line}: exit {made.returncode}: {made.stderr}")
            expect(("would refuse" in made.stderr) == (code == 1), f"{line}: {made.stderr}")
            path = os.path.join(folder, "made.json")
            with open(path, "w") as out:
                out.write(made.stdout)
            ran = run(dbo, "simulate", path, "--json")
            expect(ran.returncode == 0, f"{line}: its config does not run: {ran.stderr}")
            if ran.returncode == 0:
                expect(json.loads(ran.stdout)["decision"]["split"], f"{line}: its step is not split")
            report = json.loads(run(dbo, "from-serve", line, "--json").stdout)
            overlap = report["config"]["overlap"]
            expect((overlap["schedule"], overlap["transport"]) == (schedule, transport), f"{line}: {overlap}")
            expect(bool(report["refused"]) == (code == 1) and report["took"] and report["assumed"] and
                   report["version"].startswith(report["server"]), f"{line}: {report}")
            run(dbo, "from-serve", line, "--out", os.path.join(folder, "file.json"))
            expect(open(os.path.join(folder, "file.json")).read() == made.stdout, f"{line}: --out is not stdout")
    for line, words in (("python3 train.py", "starts no server"), ("vllm serve nosuch/model", "no preset fits"),
                        ("vllm serve mixtral-8x7b -dp two", 'is no whole number')):
        bad = run(dbo, "from-serve", line)
        expect(bad.returncode == 2 and words in bad.stderr and not bad.stdout,
               f"{line}: exit {bad.returncode}: {bad.stderr}")
    print("\n".join(problems) if problems else f"{len(COMMANDS)} serving commands become configs that run")
    sys.exit(1 if problems else 0)


main()
