#!/usr/bin/env python3
"""Paired timing of bloomery and llama.cpp on the processor.

    benches/cpu.py --ours target/release --peer LLAMA_CPP_BUILD/bin [--rounds 3] [--threads 1 2] MODEL...

For every model and thread count the two bench programs run in turn (A B A B ...), first alone, then (generation only) beside one busy
process. Peak resident memory comes with every run. `cold` starts each server anew and takes the time to the first token of a
60-token prompt with the file in the page cache. Every raw figure is printed as it comes; the last part is a Markdown table of
medians.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

PROMPT = "Once upon a time, in a small village by the sea, " * 5


def bench(program, model, threads, prompt, gen):
    """One run: ({test: tokens a second}, peak resident MiB)."""
    command = [program, "-m", model, "-t", str(threads), "-p", str(prompt), "-n", str(gen), "-r", "1", "-o", "md"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f"{' '.join(command)}: ended with {status}")
    rows = re.findall(r"\|\s*(pp\d+|tg\d+)\s*\|\s*([0-9.]+)", text)
    return {test: float(rate) for test, rate in rows}, usage.ru_maxrss / 1024


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cold(program, model, threads):
    """Seconds from the start of the process to its first token, and peak resident MiB by then."""
    port = free_port()
    command = [program, "-m", model, "-t", str(threads), "-c", "2048", "-np", "1", "--port", str(port)]
    body = json.dumps({"prompt": PROMPT, "n_predict": 1, "temperature": 0}).encode()
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/completion", body, {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=60).read()
            break
        except OSError:
            if time.monotonic() - start > 120:
                child.kill()
                sys.exit(f"{' '.join(command)}: no answer in two minutes")
            time.sleep(0.005)
    seconds = time.monotonic() - start
    child.terminate()
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    return seconds, usage.ru_maxrss / 1024


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("models", nargs="+")
    flags.add_argument("--ours", required=True, help="folder with bloomery-bench and bloomery-serve")
    flags.add_argument("--peer", required=True, help="folder with llama-bench and llama-server")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    flags.add_argument("--prompt", type=int, default=512)
    flags.add_argument("--gen", type=int, default=64)
    flags = flags.parse_args()
    sides = {"ours": flags.ours + "/bloomery-", "peer": flags.peer + "/llama-"}
    samples, memory = {}, {}

    def note(side, model, threads, case, value, unit):
        samples.setdefault((model, threads, case), {}).setdefault(side, []).append(value)
        print(f"{side}  {os.path.basename(model)}  t={threads}  {case}  {value:.2f} {unit}", flush=True)

    def pairs(model, threads, prompt, gen, suffix):
        for _ in range(flags.rounds):
            for side, path in sides.items():
                rates, rss = bench(path + "bench", model, threads, prompt, gen)
                memory.setdefault((model, threads), {}).setdefault(side, []).append(rss)
                for test, rate in rates.items():
                    note(side, model, threads, test + suffix, rate, "tok/s")

    for model in flags.models:
        for threads in flags.threads:
            pairs(model, threads, flags.prompt, flags.gen, "")
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                pairs(model, threads, 0, flags.gen, " busy")
            finally:
                busy.kill()
                busy.wait()
        for _ in range(flags.rounds):
            for side, path in sides.items():
                seconds, _ = cold(path + "server" if side == "peer" else path + "serve", model, max(flags.threads))
                note(side, model, max(flags.threads), "cold", seconds, "s")

    print("\n| model | threads | test | bloomery | llama.cpp | ratio |\n|---|---|---|---|---|---|")
    for (model, threads, case), sides_ in samples.items():
        ours, peer = (statistics.median(sides_[side]) for side in ("ours", "peer"))
        ratio = peer / ours if case == "cold" else ours / peer
        unit = " s" if case == "cold" else ""
        print(f"| {os.path.basename(model)} | {threads} | {case} | {ours:.2f}{unit} | {peer:.2f}{unit} | {ratio:.2f} |")
    for (model, threads), sides_ in memory.items():
        ours, peer = (max(sides_[side]) for side in ("ours", "peer"))
        size = os.path.getsize(model) / 2**20
        print(f"| {os.path.basename(model)} ({size:.0f} MiB) | {threads} | peak RSS, MiB | {ours:.0f} | {peer:.0f} | {ours / peer:.2f} |")


if __name__ == "__main__":
    main()
