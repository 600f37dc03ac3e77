#!/usr/bin/env python3
"""What `dbo` must refuse: exit 2 and a line that names what is wrong, never a crash and never another value instead.

usage: refusals.py DBO EXAMPLES
"""
import os
import subprocess
import sys

SERVE = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 -ep --enable-dbo --all2all-backend deepep_low_latency"


def cases(examples):
    config = os.path.join(examples, "deepseek-v3-decode-2x8-h200.json")
    tune = lambda *words: (["tune", config, "--batch", "64", *words], words[0])
    lists = [(flag, bad) for flag in ("--ep", "--context", "--ubatches", "--comm-sms")
             for bad in ("4294967312", "4294967296", "99999999999999999999", "-1", "", "16,", "1:2", "16:8:1", "8:16:0")]
    lists += [(flag, "0") for flag in ("--ep", "--ubatches", "--context")] + [("--ep", "0,16"), ("--ubatches", "2,0")]
    lists += [(flag, "") for flag in ("--transport", "--schedule", "--sm-control")]
    lists += [("--max-step-ms", bad) for bad in ("nan", "0", "-1", "inf")]
    yield from (tune(*words) for words in lists)
    for bad in ("", "0", "0:64:16", "4294967297"):
        yield ["tune", config, "--batch", bad], "--batch"
    for flag, bads in (("--time-limit", ("nan", "0", "-1")), ("--in-flight", ("0", "4294967297"))):
        for bad in bads:
            yield ["optimise", os.path.join(examples, "teaching.json"), flag, bad], flag
    for flag in ("--tokens", "--context", "--gpus-per-node"):
        for bad in ("0", "-1", "4294967304"):
            yield ["from-serve", SERVE, flag, bad], flag
    for bad in ("-1", "4294967297"):
        yield ["simulate", config, "-j", bad], "--jobs"


def main():
    dbo, examples = sys.argv[1:3]
    failed = 0
    for words, named in cases(examples):
        try:
            got = subprocess.run([dbo, *words], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            got = subprocess.CompletedProcess(words, None, "", "no end after 60 s")
        if got.returncode != 2 or named not in got.stderr or got.stdout:
            failed += 1
            print("FAIL:", *words, "->", got.returncode, got.stderr.strip()[:200])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
