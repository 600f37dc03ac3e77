#!/usr/bin/env python3
"""`dbo tune` end to end: the same bytes for any --jobs, killed and taken up again, and from shards merged.

usage: tune.py DBO EXAMPLES
"""
import csv
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

OUTPUTS = ("best.json", "gain.svg", "points.csv", "points.jsonl", "sweep.json", "tune.json")
# 10 batches of DeepSeek-V3 on 2 x 8 H200, 29 settings each.
LISTS = ("--batch", "32:320:32")

problems = []


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def expect(holds, what):
    if not holds:
        problems.append(what)


def outputs(folder, names=OUTPUTS):
    return {name: open(os.path.join(folder, name), "rb").read() for name in names}


def points_in(path):
    return [json.loads(line) for line in open(path) if line.endswith("\n")]


def jobs_do_not_matter(dbo, config, root):
    """Returns what one thread gives."""
    texts, warnings = [], []
    for jobs in ("1", "2", "5"):
        found = run(dbo, "tune", config, *LISTS, "--jobs", jobs, "--json", "--out", os.path.join(root, "jobs" + jobs))
        expect(found.returncode == 0, f"--jobs {jobs}: exit {found.returncode}: {found.stderr}")
        expect("points, " not in found.stderr, f"--jobs {jobs}: stderr is no terminal, and has {found.stderr!r}")
        warnings.append(found.stderr)
        texts.append(found.stdout)
    expect(texts[0] == texts[1] == texts[2], "--json differs with --jobs")
    expect(warnings[0] == warnings[1] == warnings[2], "warnings differ with --jobs")
    one = outputs(os.path.join(root, "jobs1"))
    for jobs in ("2", "5"):
        for name, content in outputs(os.path.join(root, "jobs" + jobs)).items():
            expect(content == one[name], f"{name} differs with --jobs {jobs}")
    return one


def an_interrupted_run_says_how_it_goes_on(dbo, config, root):
    for folder in (os.path.join(root, "interrupted"), None):
        log = os.path.join(root, "interrupted", "points.jsonl")
        where = ["--out", folder] if folder else []
        process = subprocess.Popen([dbo, "tune", config, "--batch", "16:700:1", "--context", "1024,4096", "--jobs", "2", *where],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and folder and not os.path.exists(log):
            time.sleep(0.001)
        if not folder:
            time.sleep(1)  # some way into a sweep of 39,730 points
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
        expect(process.returncode == -signal.SIGINT, f"interrupted: exit {process.returncode}")
        hint = "the same command goes on with what is done, which is in " + folder if folder else "with --out DIR"
        expect(hint in told, f"interrupted, and told {told!r}")


def killed_run_goes_on(dbo, config, root, one):
    folder = os.path.join(root, "killed")
    log = os.path.join(folder, "points.jsonl")
    kills, before = 0, []
    for _ in range(40):
        process = subprocess.Popen([dbo, "tune", config, *LISTS, "--jobs", "2", "--out", folder],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Killed once it has finished some points that it had not found.
        while process.poll() is None and (not os.path.exists(log) or len(points_in(log)) < len(before) + 25):
            time.sleep(0.0005)
        process.kill()
        if process.wait() != -signal.SIGKILL:
            break
        kills += 1
        after = points_in(log)
        expect([p for p in before if p not in after] == [], f"kill {kills}: finished points are gone")
        before = after
    expect(kills >= 2, f"only {kills} runs were killed before one finished")
    # A crash of the machine can also leave half a line.
    whole = open(log, "rb").read()
    with open(log, "wb") as out:
        out.write(whole[: len(whole) // 2])
    resumed = run(dbo, "tune", config, *LISTS, "--out", folder)
    expect(resumed.returncode == 0, f"taking up: exit {resumed.returncode}: {resumed.stderr}")
    for name, content in outputs(folder).items():
        expect(content == one[name], f"{name} differs after {kills} kills")


def finished_points_are_not_simulated_again(dbo, config, root):
    folder = os.path.join(root, "kept")
    run(dbo, "tune", config, "--batch", "64", "--out", folder)
    log = os.path.join(folder, "points.jsonl")
    lines = open(log).read().splitlines()
    marked = dict(json.loads(lines[0]), step_ns=1)
    with open(log, "w") as out:
        out.write("\n".join([json.dumps(marked)] + lines[1:]) + "\n")
    again = json.loads(run(dbo, "tune", config, "--batch", "64", "--out", folder, "--json").stdout)
    expect(again["best"]["step_ns"] == 1, "a finished point was simulated again")


def shards_merge(dbo, config, root, one):
    folders = [os.path.join(root, "shared"), os.path.join(root, "shared"), os.path.join(root, "apart")]
    for index, folder in enumerate(folders):
        if index == 2:
            early = run(dbo, "tune", "--merge", folders[0])
            expect(early.returncode == 1 and "points are missing" in early.stderr,
                   f"merging two of three: exit {early.returncode}: {early.stderr}")
        found = run(dbo, "tune", config, *LISTS, "--shard", f"{index}/3", "--out", folder)
        expect(found.returncode == 0, f"shard {index}: exit {found.returncode}: {found.stderr}")
    merged = os.path.join(root, "merged")
    found = run(dbo, "tune", "--merge", folders[0], folders[2], "--out", merged)
    expect(found.returncode == 0, f"merge: exit {found.returncode}: {found.stderr}")
    for name, content in outputs(merged, ("best.json", "gain.svg", "points.csv", "tune.json")).items():
        expect(content == one[name], f"{name} differs when shards are merged")


def best_config_is_the_best_point(dbo, config, root):
    folder = os.path.join(root, "jobs1")
    result = json.load(open(os.path.join(folder, "tune.json")))
    own = result["own_batch"]["best"]
    summary = json.loads(run(dbo, "simulate", os.path.join(folder, "best.json"), "--json").stdout)
    expect(summary["step_ns"] == own["step_ns"],
           f"simulate gives best.json {summary['step_ns']} ns, tune its point {own['step_ns']}")
    rows = list(csv.DictReader(open(os.path.join(folder, "points.csv"))))
    expect(len(rows) == result["points"], "the CSV does not have a row a point")
    ran = [float(row["tokens_per_s_per_gpu"]) for row in rows if row["status"] == "ok"]
    expect(abs(max(ran) - result["best"]["tokens_per_s_per_gpu"]) < 0.001, "best is not the best of the CSV")
    unsplit = {(row["tokens_per_rank"], row["transport"]) for row in rows if row["ubatches"] == "1"}
    expect(unsplit == {(row["tokens_per_rank"], row["transport"]) for row in rows},
           "a batch lacks its un-split step with a transport")


def progress_is_for_terminals(dbo, config):
    """A bar with the time left where stderr is a terminal; elsewhere nothing (seen above)."""
    reader, writer = pty.openpty()
    process = subprocess.Popen([dbo, "tune", config, "--batch", "16:700:1", "--context", "1024,4096", "--jobs", "2",
                                "--json"], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    shown = b""
    # Results are more than a pipe holds: both are read until the bar has been seen.
    while not re.search(rb"tune \[#* *\] \d+ of 39730 points, \d+ s left", shown):
        ready, _, _ = select.select([reader, process.stdout], [], [], 60)
        if not ready or process.stdout in ready:
            break
        shown += os.read(reader, 4096)
    else:
        shown += b"seen"
    process.kill()
    process.communicate()
    os.close(reader)
    expect(shown.endswith(b"seen"), f"a terminal shows no bar with the time left: {shown[-200:]}")


def what_does_not_fit_is_left_out(dbo, config):
    found = run(dbo, "tune", config, "--batch", "256,2048", "--json")
    result = json.loads(found.stdout)
    why = [entry for entry in result["left_out"] if "need more than the 141 GiB of the GPU" in entry["why"]]
    expect(len(why) == 1, f"nothing is left out for its memory: {result['left_out']}")
    expect(all(point["tokens_per_rank"] == 256 for point in result["pareto"]), "what does not fit is advised")


def advice_is_checked(dbo, root):
    """What `dbo check` finds in the settings advised is said."""
    config = os.path.join(root, "prefill.json")
    with open(config, "w") as file:
        json.dump({"model": "deepseek-v3", "cluster": {"gpu": "h200-sxm", "gpus_per_node": 8, "nodes": 4},
                   "parallel": {"data": 32, "expert": 32}, "overlap": {"schedule": "vllm-ht"},
                   "workload": {"phase": "prefill", "tokens_per_rank": 8192, "context_tokens": 4096}}, file)
    for control, warned in (("none", True), ("limit", False)):
        found = run(dbo, "tune", config, "--batch", "8192", "--schedule", "vllm-ht", "--transport", "ht", "--comm-sms", "20",
                    "--sm-control", control)
        expect(found.returncode == 0 and ("warning: F17 " in found.stderr) == warned,
               f"--sm-control {control}: exit {found.returncode}: {found.stderr}")


def bad_use_is_refused(dbo, config, root):
    for arguments, words in (
            (["--shard", "3/3", "--out", root + "/x"], "--shard must be INDEX/COUNT"),
            (["--shard", "0/2"], "--shard needs --out"),
            (["--batch", "64:32:8"], "has no end"),
            (["--transport", "11"], 'unknown transport "11"'),
            (["--schedule", "vllm-hs"], 'did you mean "vllm-ht"'),
            (["--batch", "64", "--out", root + "/jobs1"], "is of another sweep")):
        found = run(dbo, "tune", config, *arguments)
        expect(found.returncode == 2 and words in found.stderr,
               f"{arguments}: exit {found.returncode}: {found.stderr}")
    tight = run(dbo, "tune", config, "--batch", "64", "--max-step-ms", "0.001")
    expect(tight.returncode == 1 and "nothing that was tried" in tight.stdout,
           f"--max-step-ms 0.001: exit {tight.returncode}: {tight.stdout}")


def main():
    dbo, examples = sys.argv[1:]
    config = os.path.join(examples, "deepseek-v3-decode-2x8-h200.json")
    with tempfile.TemporaryDirectory() as root:
        one = jobs_do_not_matter(dbo, config, root)
        killed_run_goes_on(dbo, config, root, one)
        an_interrupted_run_says_how_it_goes_on(dbo, config, root)
        finished_points_are_not_simulated_again(dbo, config, root)
        shards_merge(dbo, config, root, one)
        best_config_is_the_best_point(dbo, config, root)
        progress_is_for_terminals(dbo, config)
        what_does_not_fit_is_left_out(dbo, config)
        advice_is_checked(dbo, root)
        bad_use_is_refused(dbo, config, root)
    print("\n".join(problems) if problems else "any --jobs, kill, shard or merge gives the same sweep")
    sys.exit(1 if problems else 0)


main()
