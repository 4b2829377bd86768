"""A step of data parallel training: whose attention waits until all its programs can run, and whose does not.

Backward in order, without a mask, with tiles in rounds, is one launch of programs that wait for each other in a circle,
so the device begins it when as many multiprocessors are free as it has programs. A collective of NCCL holds some of
them; so a rank takes tiles from a counter (`BESIDE_COLLECTIVES`). What either costs is asked here: a transformer of the
large sizes with our attention, backward in each of four ways, alone and with buckets whose all-reduce is under way
meanwhile. "exposed ms" is a step with sending minus the same step without, in the same round. The slowest rank counts.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks.against import Red
from benchmarks.parallel import exposed
from benchmarks.parallel_steps import Setting, Step, timed, twin
from course_lib.device import TIER
from course_lib.distributed import launch, place
from course_lib.kernels.attention import attention, backward, tuning
from course_lib.models.transformer import Sizes, Transformer
from course_lib.parallel import Buckets

WAYS = ("one pass in order", "one pass in order, in rounds", "one pass in any order", "two passes")
MIB = 25.0
ON_GPUS = Setting(Sizes(16000, 4096, 2048, 16, 8), torch.bfloat16, 2, (MIB,), 16, steps=2, seconds=(30, 0, 0, 0))


class Ours(nn.Module):
    """The attention of a block of the transformer, with the same weights, on our kernels."""

    def __init__(self, plain: nn.Module):
        super().__init__()
        self.heads, self.qkv, self.out, self.deterministic = plain.heads, plain.qkv, plain.out, True

    def forward(self, x):  # (B, T, width)
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        o = attention(q, k, v, deterministic=self.deterministic)
        return self.out(o.transpose(1, 2).reshape(batch, tokens, width))


def run() -> list[dict]:
    if TIER != "gpu" or torch.cuda.device_count() < 2:
        raise Red("a collective beside attention is asked about: two GPUs are needed")
    start = time.perf_counter()
    told = launch(measured, torch.cuda.device_count(), args=(ON_GPUS,), limit_s=150)
    print(f"attention_in_ddp: {time.perf_counter() - start:.0f} s", flush=True)
    return rows(told)


def rows(told: list[dict]) -> list[dict]:
    """What the ranks measured, a row a way: value is the step with sending."""
    found = []
    for way in WAYS:
        alone, sending = (np.max([of_rank[way, sends] for of_rank in told], axis=0) for sends in (False, True))
        row = {"name": f"step, attention backward in {way}", "value": float(np.median(sending)) * 1e3, "unit": "ms"}
        row |= {"ranks": len(told), "turns": len(sending), "alone ms": float(np.median(alone)) * 1e3}
        found.append(row | exposed(sending - alone))
    return found


def measured(rank: int, setting: Setting) -> dict[tuple[str, bool], list[float]]:
    """(way, whether it sends) -> seconds a step in each turn on this rank."""
    torch.manual_seed(0)
    with place():
        model = Transformer(setting.sizes).to(setting.dtype)
    for block in model.blocks:
        block.attention = Ours(block.attention)
    own = torch.Generator().manual_seed(rank)
    tokens = torch.randint(setting.sizes.vocabulary, (setting.batch, setting.sizes.context + 1), generator=own)
    tokens = tokens.to(place())
    modules = {sends: twin(model) for sends in (False, True)}
    bare = Step(modules[False], modules[False])
    whole = Step(Buckets(modules[True], setting.mibs[0], static=True), modules[True])
    steps = {
        (way, sends): partial(_in_way, way, modules[sends], whole if sends else bare)
        for way in WAYS
        for sends in (False, True)
    }
    for step in steps.values():
        for _ in range(3):
            step(tokens)
    return timed(steps, list(steps), tokens, setting, 4, setting.seconds[0])


def _in_way(way: str, module: nn.Module, step: Step, tokens: torch.Tensor) -> None:
    for block in module.blocks:
        block.attention.deterministic = way != "one pass in any order"
    patches = {
        "two passes": mock.patch.object(backward, "one_pass_for", return_value=None),
        "one pass in order, in rounds": mock.patch.object(tuning, "BESIDE_COLLECTIVES", {}),
        "one pass in any order": mock.patch.object(tuning, "FASTER_IN_ORDER", {}),
    }
    with patches.get(way, nullcontext()):
        step(tokens)
