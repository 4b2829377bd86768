"""One rank: a process that joins the group, runs the function, and tells how that went."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import json
import linecache
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

# NVLink multicast stays off: a program that dies while it holds a multicast group can leave the GPUs of a host
# unusable until the host is reset. Values that the environment already has are kept.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # nothing is asked of a network or a name server
MESSAGE_BYTES = 1 << 17  # largest last message of a rank
SAID_CHARACTERS = 20_000  # most of the error's message, and most of its traceback
LATER_S = 30.0  # the group's own time limit comes this much after the launch's, which reports more


def run(rank: int, size: int, talk: socket.socket, folder: str) -> int:
    """Everything between the fork and the end; the exit status."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # how the launch asks for stacks
    sys.stdout, sys.stderr = (open(n, "w", 1, encoding="utf-8", errors="replace", closefd=False) for n in (1, 2))
    error = None
    try:
        value = _called(rank, size, Path(folder))
        with open(Path(folder) / f"result{rank}", "wb") as file:
            torch.save(value, file, pickle_module=cloudpickle)
    except BaseException as raised:  # SystemExit too: a rank that leaves early leaves the others waiting
        error = raised
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    talk.send(json.dumps(story(error) if error else {}).encode())
    # Wait until all ranks have answered. A failed rank keeps its connections open until then: closing them early
    # would make other ranks fail too, and hide the cause.
    talk.recv(1)
    if error is None and dist.is_initialized():
        dist.destroy_process_group()
    return 0


def _called(rank: int, size: int, folder: Path) -> Any:
    order = json.loads((folder / "order").read_text())
    os.environ.update(order["environment"])
    os.chdir(order["place"])
    sys.path[:], sys.argv[:] = order["path"], order["words"]
    linecache.cache.update({name: tuple(entry) for name, entry in order["cells"].items()})
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    join(order["backend"], rank, size, order["limit_s"] + LATER_S, store=dist.FileStore(str(folder / "store"), size))
    function, args = load(folder / "call")
    return function(rank, *args)


def join(
    backend: str, rank: int, size: int, limit_s: float, *, store: dist.Store | None = None, local: int | None = None
):
    """Become part of the group. Without a store the environment says where the others are, as torchrun sets it."""
    for name, value in (NO_MULTICAST | (ONE_HOST if store else {})).items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=limit_s)}
    if store is not None:
        options |= {"store": store, "rank": rank, "world_size": size}
    if backend == "nccl":
        torch.cuda.set_device(rank if local is None else local)
        options["device_id"] = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(backend, **options)


def load(path: Path) -> Any:
    """What was saved by another process, its tensors on the host."""
    with open(path, "rb") as file:
        return torch.load(file, map_location="cpu", weights_only=False)


def story(error: BaseException) -> dict[str, Any]:
    """What went wrong, in words that can travel."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:  # frames of this file
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return {
        "error": type(error).__name__,
        "message": str(error)[:SAID_CHARACTERS],
        "traceback": text[-SAID_CHARACTERS:],
        "at": time.monotonic(),
    }


def place() -> torch.device:
    """Where this rank keeps its tensors: its own GPU with NCCL, the host with gloo."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
