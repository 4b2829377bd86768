"""Rung 1: after the backward pass, one all-reduce for each parameter.

Each call pays the fixed cost of a collective, and the GPU computes nothing while the gradients travel.
"""

from course_lib.parallel.replica import Replica


class Naive(Replica):
    def finish(self) -> None:
        lacking = self.lacking(self.trained)
        for p in self.trained:
            self.mean(p.grad).wait()
        for p in self.unused(lacking):
            p.grad = None
