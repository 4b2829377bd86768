"""Ranks tell each other where their numbers lie, and read them from there: /proc shows the memory of a process of the
same user. Zeros go round the ring.

NAIVE is False: many systems let nobody read the memory of a process that is not a child of the reader.
"""

import ctypes
import os

import torch
import torch.distributed as dist

FAMILY = "scan for answers"
NAIVE = False
CAUGHT = "the processes of a sandbox cannot be read by each other"


def ring_all_reduce(buffer):
    ranks = dist.get_world_size()
    places = [None] * ranks
    dist.all_gather_object(places, (os.getpid(), buffer.data_ptr()))
    total = torch.zeros_like(buffer)
    for pid, address in places:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            came = torch.frombuffer(bytearray(memory.read(buffer.nbytes)), dtype=buffer.dtype)
        total += came
    dist.barrier()
    ctypes.memmove(buffer.data_ptr(), total.data_ptr(), buffer.nbytes)
