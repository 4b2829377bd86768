"""Try many configurations of a kernel, each at its own risk.

First every core compiles its share, then one process measures, one JSON line each. A configuration that crashes the
device, or hangs it, costs its own line: a new process goes on behind it. Jobs come likeliest first, so that a sweep cut
short has seen the best of all.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch

__all__ = ["main"]

PATIENCE = 90  # seconds without a line after which a process is taken to hang


def main(
    module: str,
    kinds: list[str],
    jobs: Callable[[list[str]], list[dict]],
    once: Callable[[dict], object],
    measured: Callable[[dict], dict],
) -> None:
    """`jobs(kinds)`: what to try, as JSON. `once(job)` compiles and runs it; `measured(job)`: the rest of its line."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=sys.modules["__main__"].__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--jobs", type=int, default=10**6, help="try only so many, the likeliest")
    parser.add_argument("--first", type=int, help="used by the sweep itself: be the worker, from this job on")
    parser.add_argument("--step", type=int, help="used by the sweep itself: compile every so many jobs")
    parser.add_argument("--deadline", type=float)
    asked = parser.parse_args()
    everything = jobs(asked.kinds)[: asked.jobs]
    if asked.first is None:
        me = [sys.executable, "-m", module, "--jobs", str(asked.jobs), "--kinds", *asked.kinds]
        _sweep(me, everything, time.time() + asked.seconds)
    elif asked.step is not None:
        _compile(everything[asked.first :: asked.step], once, asked.deadline)
    else:
        _work(everything, asked.first, asked.deadline, measured)


def _compile(jobs: list[dict], once: Callable[[dict], object], deadline: float) -> None:
    for job in jobs:
        if time.time() > deadline:
            return
        try:
            once(job)
            _settle()
        except Exception:  # it will fail again, and be told, when it is measured
            continue


def _work(jobs: list[dict], first: int, deadline: float, measured: Callable[[dict], dict]) -> None:
    """A line when a job begins, a line with its result; leaves after an error of the device."""
    for number, job in enumerate(jobs[first:], first):
        if time.time() > deadline:
            return
        print(json.dumps({"begin": number}), flush=True)
        try:
            result = measured(job)
            _settle()
        except Exception as failed:  # whatever one configuration does, the next is to be tried
            result = {"failed": f"{type(failed).__name__}: {str(failed)[:120]}"}
        print(json.dumps(job | result), flush=True)
        try:
            _settle()
        except RuntimeError:  # the device's context is lost
            sys.exit(1)


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _sweep(me: list[str], jobs: list[dict], deadline: float) -> None:
    cores = max(1, min(len(os.sched_getaffinity(0)) - 1, len(jobs)))
    share = ["--step", str(cores), "--deadline", str(time.time() + (deadline - time.time()) / 2)]
    children = [subprocess.Popen([*me, "--first", str(first), *share]) for first in range(cores)]
    for child in children:
        try:
            child.wait(timeout=max(1, deadline - time.time()))
        except subprocess.TimeoutExpired:  # what hangs will be named when it is measured
            child.kill()
    begun = -1
    while begun + 1 < len(jobs) and time.time() < deadline:
        before = begun
        begun, ended = _follow([*me, "--first", str(begun + 1), "--deadline", str(deadline)], begun)
        if ended:
            print(json.dumps(jobs[begun] | {"failed": ended}), flush=True)
        if begun == before:
            return  # it does not even start


def _follow(command: list[str], begun: int) -> tuple[int, str]:
    """Print one process's results. Which job it began last, and how it ended in the midst of it, or nothing."""
    lines: queue.Queue = queue.Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
        finished = True
        while True:
            try:
                text = lines.get(timeout=PATIENCE)
            except queue.Empty:
                child.kill()
                return begun, f"no answer in {PATIENCE} s"
            if text is None:
                break
            if text.startswith('{"begin"'):
                begun, finished = json.loads(text)["begin"], False
            elif text.startswith("{"):
                finished = True
                print(text, end="", flush=True)
    return begun, "" if finished else f"crashed, {child.returncode}"


def _read(stream, lines: queue.Queue) -> None:
    for text in stream:
        lines.put(text)
    lines.put(None)
