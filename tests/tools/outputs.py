#!/usr/bin/env python3
"""Where `dbo` writes: links, FIFOs and standard output as named, the files of one run all or none, a full disk said.

usage: outputs.py DBO EXAMPLES
"""
import json
import os
import resource
import subprocess
import sys
import tempfile

SERVE = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 -ep --enable-dbo --all2all-backend deepep_low_latency"

problems = []


def run(*command, **options):
    return subprocess.run(command, stdout=options.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True,
                          timeout=120, **options)


def expect(holds, what):
    if not holds:
        problems.append(what)


def names_are_not_replaced(dbo, root):
    plain = run(dbo, "from-serve", SERVE).stdout
    fifo, link = os.path.join(root, "fifo"), os.path.join(root, "link")
    os.mkfifo(fifo)
    os.symlink("fifo", link)
    for name in (fifo, link):
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        expect(run(dbo, "from-serve", SERVE, "-o", name).returncode == 0, f"{name}: not written")
        expect(os.read(reader, 1 << 16).decode() == plain, f"{name}: the FIFO gave no config")
        os.close(reader)
    expect(os.path.islink(link) and not os.path.isfile(fifo), "the FIFO or the link was replaced")
    dash = run(dbo, "from-serve", SERVE, "-o", "-")
    expect(dash.stdout == plain, "-o - is not the config alone")
    both = run(dbo, "from-serve", SERVE, "-o", "-", "--json")
    expect(both.returncode == 2 and "--json" in both.stderr, f"-o - --json: {both.returncode} {both.stderr}")


def all_files_or_none(dbo, examples, root):
    """A run that may write no more than 8 KiB a file: the plan and the traces are longer, the summary is not."""
    out = os.path.join(root, "out")
    first = run(dbo, "simulate", os.path.join(examples, "teaching.json"), "--out", out)
    expect(first.returncode == 0, f"simulate: {first.stderr}")
    before = {name: open(os.path.join(out, name), "rb").read() for name in sorted(os.listdir(out))}
    other = os.path.join(examples, "deepseek-v3-decode-2x8-h200.json")
    # The signal of the limit stays ignored, as in this process: writing fails instead.
    failed = run(dbo, "simulate", other, "--out", out, restore_signals=False,
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)))
    expect(failed.returncode == 2 and "cannot write" in failed.stderr, f"limit: {failed.returncode} {failed.stderr}")
    after = {name: open(os.path.join(out, name), "rb").read() for name in sorted(os.listdir(out))}
    expect(before == after, f"a failed run changed {[n for n in after if after[n] != before.get(n)]}")


def ranks_asked_for_are_traced(dbo, examples, root):
    """All 16 ranks of the example have equal work; each is traced under its own number all the same."""
    out = os.path.join(root, "ranks")
    config = os.path.join(examples, "deepseek-v3-decode-2x8-h200.json")
    for words, want in ((("1",), [1]), (("5", "12"), [5, 12]), (("all",), list(range(16))), ((), [0])):
        got = run(dbo, "simulate", config, "--out", out, *(("--ranks", *words) if words else ()))
        expect(got.returncode == 0, f"--ranks {words}: {got.stderr}")
        for name in ("predicted.trace.json", "baseline.trace.json"):
            trace = json.load(open(os.path.join(out, name)))
            times = {}
            for event in trace["traceEvents"]:
                if event["ph"] == "X":
                    times.setdefault(event["args"]["rank"], []).append((event["name"], event["ts"], event["dur"]))
            expect(sorted(times) == want, f"--ranks {words}: {name} has ranks {sorted(times)}")
            expect(all(t == times[min(times)] for t in times.values()), f"--ranks {words}: equal ranks differ in {name}")


def one_word_for_exposed_communication(dbo, examples, root):
    """`inspect` says of a predicted trace what `simulate` said of its step, in the same words; lanes add up."""
    out = os.path.join(root, "exposed")
    for name in ("deepseek-v3-decode-2x8-h200.json", "teaching.json"):
        text = run(dbo, "simulate", os.path.join(examples, name), "--out", out).stdout
        with open(os.path.join(out, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
        trace = os.path.join(out, "predicted.trace.json")
        inspected = json.loads(run(dbo, "inspect", trace, "--json").stdout)
        found = [rank["exposed_comm_ns"] for rank in inspected["ranks"]]
        expect(summary["exposed_comm_ns"] in found, f"{name}: exposed {summary['exposed_comm_ns']}, inspect {found}")
        table = run(dbo, "inspect", trace).stdout
        for output in (text, table):
            expect(any(line.strip().startswith("exposed comm ") for line in output.splitlines()),
                   f"{name}: no line of exposed comm")
        for lane, busy in summary["lanes"].items():
            idle = sum(b["ns"] for b in summary["bubbles"] if b["lane"] == lane and b["while"] == "idle")
            expect(busy["busy_ns"] in (0, summary["step_ns"] - idle), f"{name}: {lane} is busy {busy} and idle {idle}")


def costs_fit_the_plan(dbo, root):
    """A time for each launch of the plan, no fewer and no more."""
    plan = os.path.join(root, "ranks", "plan.json")
    trace = json.load(open(os.path.join(root, "ranks", "predicted.trace.json")))
    least = 1 + max(e["args"]["plan_op"] for e in trace["traceEvents"] if "plan_op" in e.get("args", {}))
    for count in (1, least + 1000):
        costs = os.path.join(root, "costs.json")
        json.dump({"source": "ops", "launches_us": [1] * count}, open(costs, "w"))
        got = run(dbo, "simulate", plan, "--costs", costs)
        expect(got.returncode == 2 and "/launches_us" in got.stderr and f"has {count}" in got.stderr,
               f"{count} launches: {got.returncode} {got.stderr}")


def what_a_profile_cannot_say_is_said(dbo, root):
    """Points with pauses that say nothing of the clock: a warning with file and place, whatever the command."""
    point = {"precision": "bf16", "sms": 132, "spread_us": 1, "repeats": 5, "tokens": 64, "context": 1000}
    dense, paused = {"sm_mhz": 1400}, {"sm_mhz": 1750, "duty": 67}
    points = [{"op": "A0", "median_us": 20, **dense}, {"op": "A0", "median_us": 19, **paused},
              {"op": "A1", "median_us": 100, **dense}, {"op": "A1", "median_us": 80, **paused},
              {"op": "A1", "median_us": 70, **paused, "duty": 30}]
    for p in points:
        p.update(point)
    config, shaped = {"model": {"preset": "deepseek-v2-lite"}, "parallel": {"data": 8, "expert": 8},
                      "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 1},
                      "workload": {"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1000},
                      "overlap": {"schedule": "vllm-ll", "transport": "lsa-ll"}}, os.path.join(root, "shaped.json")
    with open(shaped, "w") as file:
        json.dump(config, file)
    shape = json.loads(run(dbo, "plan", shaped, "--json").stdout)["shape"]
    config["costs"] = {"source": "profile", "file": "strange.json"}
    with open(shaped, "w") as file:
        json.dump(config, file)
    profile = {"format": 1, "machine": {"gpu": "NVIDIA H200", "preset": "h200-sxm", "gpus": 8}, "date": "2026-12-01",
               "shape": shape, "points": points}
    with open(os.path.join(root, "strange.json"), "w") as file:
        json.dump(profile, file)
    want = "strange.json: /points/4/duty: 30, and most points with pauses are at duty 67"
    for words in (("simulate", shaped, "--json"), ("tune", shaped, "--batch", "128", "--json"),
                  ("optimise", shaped, "--json")):
        got = run(dbo, *words)
        expect(got.returncode == 0 and got.stderr.count(want) == 1, f"{words}: {got.returncode} {got.stderr}")
        if words[0] == "simulate":
            said = json.loads(got.stdout)["assumptions"]
            expect(sum(want in line for line in said) == 1, f"assumptions: {said}")


def full_output_is_said(dbo, examples):
    """Long texts fail while they are printed, short ones when they are flushed: both are the user's to mend."""
    config = os.path.join(examples, "teaching.json")
    for words in (("--help",), ("--version",), ("tune", "--help"), ("simulate", config), ("simulate", config, "--json"),
                  ("plan", config, "--json"), ("plan", config),
                  ("check", config, "--json"), ("list", "models", "--json"), ("from-serve", SERVE, "--json"),
                  ("from-serve", SERVE, "-o", "-"), ("tune", config, "--json"), ("optimise", config, "--json")):
        with open("/dev/full", "w") as full:
            got = run(dbo, *words, stdout=full)
        expect(got.returncode == 2 and "standard output: cannot write" in got.stderr, f"{words}: {got.returncode} {got.stderr}")
        # What failed before the last flush has lost its reason.
        if words == ("simulate", config):
            expect("No space left" in got.stderr, f"{words}: {got.stderr}")


def main():
    dbo, examples = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as root:
        names_are_not_replaced(dbo, root)
        all_files_or_none(dbo, examples, root)
        ranks_asked_for_are_traced(dbo, examples, root)
        one_word_for_exposed_communication(dbo, examples, root)
        costs_fit_the_plan(dbo, root)
        what_a_profile_cannot_say_is_said(dbo, root)
    full_output_is_said(dbo, examples)
    for problem in problems:
        print("FAIL:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
