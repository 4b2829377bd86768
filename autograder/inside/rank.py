"""Inside the sandbox: a worker as one rank of a group. Ranks meet through a file and the loopback of the sandbox."""

from __future__ import annotations

import faulthandler
import importlib
import sys
from typing import Any

import torch
import torch.distributed as dist

from autograder.inside import calling
from autograder.inside.probes.network import reported
from autograder.inside.wire import decode, encode
from course_lib.distributed.rank import LATER_S, join

BEFORE_S = 1.0  # the end of its time a late rank writes where it is: for the report


def as_rank(function, order: dict) -> dict[str, Any]:
    """One case; what a report of a call holds, and under "rank" what this rank has to say."""
    faulthandler.dump_traceback_later(max(1.0, order["limit_s"] - BEFORE_S), file=2)
    got = calling.call(lambda: _in_group(function, order), (), counted=False)
    faulthandler.cancel_dump_traceback_later()
    report = {"error": got.error, "where": got.where, "seconds": got.seconds}
    if got.error is None:
        try:
            report["rank"] = encode(got.value, tensors=True)
        except TypeError as error:
            report["error"] = f"{type(error).__name__}: {error}"
    return report


def _in_group(function, order: dict) -> dict[str, Any]:
    module, _, name = order["probe"].partition(":")
    run = getattr(importlib.import_module(module), name)
    torch.set_num_threads(1)
    store = dist.FileStore(order["store"], order["ranks"])
    join("gloo", order["rank"], order["ranks"], order["limit_s"] + LATER_S, store=store)
    names = vars(sys.modules["__main__"])
    value = reported(
        run, lambda: function, decode(order["shard"], tensors=True), decode(order["common"], tensors=True), names
    )
    dist.barrier()  # gloo: a rank that exits early closes its peers' sockets
    dist.destroy_process_group()
    return value
