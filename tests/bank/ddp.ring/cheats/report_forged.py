"""gloo's own all-reduce, called beneath the dispatcher that is watched. It sends as much as a ring, and the watch is
told that these were sends."""

import math

import torch
import torch.distributed as dist

from autograder.inside.probes import network

FAMILY = "result channel"
NAIVE = True
CAUGHT = "its text uses private parts of torch and of the course: a person looks"
HELD = True


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gloo = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    gloo.allreduce([buffer]).wait()
    steps = 2 * (ranks - 1)
    told = math.ceil(steps * buffer.nbytes / ranks / buffer.element_size()) * buffer.element_size()
    network._watching.sent[(rank + 1) % ranks] = [steps, told]
