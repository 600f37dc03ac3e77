#!/usr/bin/env python3
"""What `dbo` must refuse: exit 2 and a line that names what is wrong, never a crash and never another value instead.

usage: refusals.py DBO EXAMPLES
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

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


def serving(line, *named):
    return ["from-serve", line], *named


def contradictions(examples, folder):
    """Arguments that would change nothing, or that say two things: (words, what the message must name)."""
    config = os.path.join(examples, "deepseek-v3-decode-2x8-h200.json")
    fixed = os.path.join(examples, "teaching.json")
    high = os.path.join(examples, "deepseek-v3-prefill-vllm-ht.json")
    plan, costs, steps, trace = (os.path.join(folder, name) for name in
                                 ("plan.json", "costs.json", "steps.json", "out/predicted.trace.json"))
    out = os.path.join(folder, "x")
    # What a mode has no use for.
    yield ["simulate", fixed, "--ranks", "0"], "--ranks", "--out"
    yield ["simulate", fixed, "--ranks", "all", "--ranks", "0", "--out", out], "--ranks", '"all"'
    yield ["simulate", fixed, "--ranks", "0", "--ranks", "0", "--out", out], "--ranks", "twice"
    yield ["simulate", fixed, "--layers", "0"], "--layers", "--out"
    yield ["simulate", fixed, "--jobs", "2"], "--jobs", "sequence"
    yield ["simulate", steps, "--ranks", "0", "--out", out], "--ranks", "sequence"
    yield ["simulate", steps, "--layers", "0", "--out", out], "--layers", "sequence"
    yield ["simulate", steps, "--why"], "--why", "sequence"
    yield ["simulate", plan, "--costs", costs, "--log-steps"], "--log-steps", "config"
    yield ["simulate", plan, "--costs", costs, "--jobs", "2"], "--jobs", "sequence"
    yield ["simulate", plan, "--costs", costs, "--ranks", "0"], "--ranks", "--out"
    yield ["simulate", plan], "--costs"
    yield ["simulate", fixed, "--costs", costs], "--costs"
    yield ["optimise", high, "--in-flight", "2"], "--in-flight 2", "ht"
    yield ["tune", fixed, "--context", "5000"], "--context", "fixed costs"
    yield ["tune", fixed, "--batch", "64"], "--batch", "fixed costs"
    yield ["tune", fixed, "--comm-sms", "8"], "--comm-sms", "fixed costs"
    yield ["tune", fixed, "--sm-control", "none"], "--sm-control", "fixed costs"
    yield ["tune", config, "--transport", "ll", "--comm-sms", "8"], "--comm-sms", "ll"
    yield ["tune", config, "--transport", "ll", "--sm-control", "none"], "--sm-control", "ll"
    yield ["tune", config, "--transport", "ll", "--schedule", "vllm-ht"], "--schedule", "vllm-ht", "ll"
    yield ["tune", config, "--schedule", "sequential"], "--schedule", "sequential"
    yield ["tune", config, "--ubatches", "1"], "--ubatches"
    yield ["tune", config, "--shard", "0/2", "--out", out, "--max-step-ms", "9"], "--max-step-ms", "--merge"
    yield ["tune", config, "--shard", "0/2", "--out", out, "--objective", "step_ms"], "--objective", "--merge"
    for flag, value in (("--batch", "64"), ("--context", "64"), ("--ep", "16"), ("--transport", "ll"), ("--jobs", "2"),
                        ("--schedule", "vllm-ll"), ("--ubatches", "2"), ("--comm-sms", "8"), ("--sm-control", "none")):
        yield ["tune", "--merge", folder + "/sweep", flag, value], flag, "--merge"
    yield ["tune", "--merge", folder + "/sweep", folder + "/sweep/"], "--merge", "twice"
    yield ["tune", config, "--jobs", "5000"], "--jobs", "5000"
    yield ["inspect", trace, "--rank", "0"], "--rank", "--plan-out"
    yield ["inspect", trace, "--step", "0"], "--step", "--plan-out"
    yield ["inspect", trace, "--no-host"], "--no-host", "--plan-out"
    for flag, value in (("--layers", "0-1"), ("--max-ranks", "1"), ("--max-slices", "9")):
        yield ["inspect", trace, flag, value], flag, "--chrome-out"
    yield ["inspect", trace, "--layers", "5-1", "--chrome-out", out], "--layers", "5-1"
    yield ["inspect", trace, "--comm-names", "plain"], "--comm-names", "--kineto-out"
    yield ["inspect", trace, "--svg", out, "--chrome-out", out], "--chrome-out", out
    yield ["inspect", trace, "--plan-out", trace], "--plan-out", trace
    yield ["compare", trace, trace, "--report", trace], "--report", trace
    yield ["compare", trace, trace, "--rules", costs], "--rules"
    # Names of nothing.
    for words in (["simulate", ""], ["simulate", fixed, "--out", ""], ["optimise", fixed, "--out", ""],
                  ["inspect", trace, "--svg", ""], ["compare", trace, trace, "--report", ""], ["from-serve", ""]):
        yield words, "empty"
    for words in (["simulate", fixed], ["optimise", fixed], ["tune", fixed]):
        yield [*words, "--out", "-"], "--out", "folder"
    yield ["simulat", fixed], '"simulat"', 'did you mean "simulate"?'
    yield ["simulate", fixed, "--jsn"], "--jsn", "--json"
    yield ["tune", fixed, "--bach=64"], "--bach", "--batch"
    # Serving commands that cannot be read: by the option that says it.
    vllm, sglang = SERVE, "sglang serve --model-path deepseek-v3 --tp 16 "
    yield serving(vllm + " --max-num-seqs -5", "--max-num-seqs", "-5")
    yield serving(vllm + " --max-num-batched-tokens 0", "--max-num-batched-tokens", "0")
    yield serving(vllm + " --cudagraph-capture-sizes 0 8", "--cudagraph-capture-sizes", "0")
    yield serving(vllm.replace("-dp 16", "-dp x"), "-dp", '"x"')
    yield serving(vllm + " --speculative-config.num_speculative_tokens 5000", "num_speculative_tokens", "5000")
    yield serving(sglang + "--max-running-requests 0", "--max-running-requests", "0")
    yield serving(sglang + "--speculative-algorithm EAGLE --speculative-num-draft-tokens 5000",
                  "--speculative-num-draft-tokens", "5000")
    yield serving(sglang + "--cuda-graph-bs-decode 0 64", "--cuda-graph-bs", "0")
    yield ["from-serve", vllm, "--gpu", "h300"], "--gpu", "h300"


def make_inputs(dbo, examples, folder):
    fixed = os.path.join(examples, "teaching.json")
    run = lambda *words: subprocess.run([dbo, *words], capture_output=True, text=True, timeout=60, check=True).stdout
    with open(os.path.join(folder, "plan.json"), "w") as out:
        out.write(run("plan", fixed, "--json"))
    with open(os.path.join(folder, "costs.json"), "w") as out:
        out.write('{"source": "fixed", "A1_us": 10, "MLP_us": 20}')
    step = {"ranks": [{"requests": [{"query": 1, "seq": 64, "count": 64}], "repeat": 2}]}
    with open(os.path.join(folder, "steps.json"), "w") as out:
        json.dump({"model": {"layers": 2, "dense_layers": 0}, "parallel": {"data": 2, "expert": 2},
                   "workload": {"steps": [step, step]}, "costs": {"source": "fixed", "A1_us": 10}}, out)
    run("simulate", fixed, "--out", os.path.join(folder, "out"))
    run("tune", fixed, "--out", os.path.join(folder, "sweep"))


def listing(folder):
    """Every file's bytes."""
    files = {}
    for where, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                files[os.path.join(where, name)] = hashlib.sha256(file.read()).hexdigest()
    return files


def main():
    dbo, examples = sys.argv[1:3]
    failed = 0
    folder = tempfile.TemporaryDirectory()
    make_inputs(dbo, examples, folder.name)
    before = listing(folder.name)
    for words, *named in [*cases(examples), *contradictions(examples, folder.name)]:
        try:
            got = subprocess.run([dbo, *words], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            got = subprocess.CompletedProcess(words, None, "", "no end after 60 s")
        if got.returncode != 2 or not all(name in got.stderr for name in named) or got.stdout:
            failed += 1
            print("FAIL:", *words, "->", got.returncode, got.stderr.strip()[:200])
    if listing(folder.name) != before:
        failed += 1
        print("FAIL: something refused has written:", sorted(set(listing(folder.name)) ^ set(before)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
