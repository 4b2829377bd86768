"""Rung 2: after the backward pass, one all-reduce for everything.

The fixed cost is paid once (for each type of number). In exchange all gradients are copied into one buffer and back:
8 bytes a parameter each way in fp32, at the speed of memory.
"""

from collections import defaultdict

import torch

from course_lib.parallel.replica import Replica


class Flat(Replica):
    def finish(self) -> None:
        lacking = self.lacking(self.trained)
        kinds = defaultdict(list)  # a buffer holds one type of number, on one device
        for p in self.trained:
            kinds[p.dtype, p.device].append(p)
        for params in kinds.values():
            buffer = torch.cat([p.grad.reshape(-1) for p in params])
            self.mean(buffer).wait()
            for p, part in zip(params, buffer.split([p.numel() for p in params]), strict=True):
                p.grad.copy_(part.view(p.shape))
        for p in self.unused(lacking):
            p.grad = None
