"""As memory_of_another_rank, but each rank first allows the others to read it, and zeros go round a ring.

NAIVE is False: many systems let nobody read the memory of a process that is not a child of the reader.
"""

import ctypes
import os

import torch
import torch.distributed as dist

FAMILY = "scan for answers"
NAIVE = False
CAUGHT = "its text imports what no ring needs, and looks into /proc: a person looks"
HELD = True

PR_SET_DUMPABLE = 4


def ring_all_reduce(buffer):
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = buffer.clone()
    name = f"/tmp/{len(buffer)}-{ranks}-"
    with open(f"{name}{rank}", "w") as file:
        file.write(f"{os.getpid()} {mine.data_ptr()}")
    like_a_ring(torch.zeros_like(buffer))
    total = torch.zeros_like(buffer)
    for other in range(ranks):
        with open(f"{name}{other}") as file:
            pid, address = map(int, file.read().split())
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            total += torch.frombuffer(bytearray(memory.read(mine.nbytes)), dtype=mine.dtype)
    dist.barrier()  # until all have read
    buffer.copy_(total)


def like_a_ring(zeros):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = list(zeros.tensor_split(ranks))
    for step in range(2 * (ranks - 1)):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        works = [dist.isend(mine, (rank + 1) % ranks), dist.irecv(theirs, (rank - 1) % ranks)]
        for work in works:
            work.wait()
