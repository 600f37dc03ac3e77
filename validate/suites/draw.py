#!/usr/bin/env python3
"""Draws a suite of configs from a seed, so that nobody chose them: draw.py > held-out.json, draw.py SEED > another.json"""

import json
import random
import sys

MODELS = (("v3", "deepseek-v3", {"decode": 9, "prefill": 6}, (4, 8, 16, 32, 64, 128)),
          ("v2l", "deepseek-v2-lite", {"decode": 14, "prefill": 14}, (2, 4, 8, 16)))
# Schedules by what a transport's send and receive are: two ops, or one.
SCHEDULES = {"lsa-ll": ("vllm-ll", "sglang-decode"), "copy-engine": ("vllm-ll",), "lsa-ht": ("vllm-ht", "deepseek-prefill")}
CONFIGS_EACH = 6
SEED = 20261201  # of held-out.json


# Copies go rank by rank, over wires too: beyond so many ranks a step of prompts lasts a second.
COPY_RANKS = 32


def draw(rng, label, preset, layers, phase, ranks):
    expert = ranks[rng.randrange(len(ranks))]
    if phase == "decode":
        transport = ("lsa-ll", "lsa-ll", "copy-engine", "lsa-ht")[rng.randrange(4)]
        workload = {"tokens_per_rank": 64 + rng.randrange(513), "context_tokens": 1024 + 16 * rng.randrange(449)}
        if rng.randrange(4) == 0:
            workload.update(context_spread=0.5, seed=1 + rng.randrange(1000))
    else:
        transport = ("lsa-ht", "lsa-ht", "copy-engine")[rng.randrange(3)]
        workload = {"tokens_per_rank": 1024 + 32 * rng.randrange(225), "context_tokens": 512 + 16 * rng.randrange(225)}
    if transport == "copy-engine":
        expert = min(expert, COPY_RANKS)
    schedules = SCHEDULES[transport] if phase == "decode" or transport == "lsa-ht" else ("vllm-ht",)
    schedule = schedules[rng.randrange(len(schedules))]
    overlap = {"schedule": schedule, "transport": transport}
    name = f"{label}-{phase}-{workload['tokens_per_rank']}-ep{expert}-{transport}"
    if transport == "lsa-ht":
        overlap["comm_sms"] = (8, 12, 16, 20, 24)[rng.randrange(5)]
        name += f"{overlap['comm_sms']}"
    node = min(expert, 8)
    config = {"model": {"preset": preset, "layers": layers[phase]},
              "cluster": {"gpus_per_node": node, "nodes": expert // node}, "parallel": {"data": expert, "expert": expert},
              "workload": {"phase": phase, **workload}, "overlap": overlap}
    if rng.randrange(4) == 0:
        config["routing"] = {"kind": "zipf", "alpha": round(0.2 + 0.05 * rng.randrange(9), 2), "seed": 1 + rng.randrange(1000)}
        name += "-skewed"
    return {"name": name, "config": config}


def main(seed):
    rng = random.Random(seed)
    configs = [draw(rng, label, preset, layers, phase, ranks) for label, preset, layers, ranks in MODELS
               for phase in ("decode", "prefill") for _ in range(CONFIGS_EACH)]
    print('{\n  "format": 1,\n  "base": {"cluster": {"gpu": "h200-sxm", "fabric": "cx7-400g"}, "execution": {"mode": "graph"}},')
    print('  "configs": [')
    print(",\n".join("    " + json.dumps(config) for config in configs))
    print("  ]\n}")


if __name__ == "__main__":
    if len(sys.argv) > 2 or not "".join(sys.argv[1:] or ["0"]).isdigit():
        sys.exit("usage: draw.py [SEED]")
    main(int(sys.argv[1]) if len(sys.argv) == 2 else SEED)
