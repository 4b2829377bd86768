"""Rung 3: a parameter's all-reduce begins when its gradient is there, while the backward pass goes on.

The last layers' gradients come first, so parameters go in the reverse of their order in the module, and always in
that one order: ranks whose shards use different parameters would otherwise start different collectives.
"""

from torch import nn

from course_lib.parallel.replica import Replica


class Overlap(Replica):
    def __init__(self, module: nn.Module, **options):
        super().__init__(module, **options)
        self.order = self.trained[::-1]
        self.arrived: set[int] = set()  # ids of the parameters whose gradients are there
        for p in self.order:
            # fires once in a backward pass, when the gradient is complete: also of a weight that is used twice
            p.register_post_accumulate_grad_hook(self.arrives)

    def arrives(self, p: nn.Parameter) -> None:
        if not self.syncing:
            return
        if id(p) in self.arrived:
            raise RuntimeError("a second backward pass before finish(): run all but the last inside no_sync()")
        self.arrived.add(id(p))
        while len(self.begun) < len(self.order) and id(self.order[len(self.begun)]) in self.arrived:
            self.begin()

    def begin(self) -> None:
        """Send the next parameter's gradient. Nobody touches it until finish()."""
        self.begun.append(self.mean(self.order[len(self.begun)].grad))

    def finish(self) -> None:
        lacking = self.lacking(self.trained)
        while len(self.begun) < len(self.order):
            self.begin()
        unused = self.unused(lacking)
        for work in self.begun:
            work.wait()  # with NCCL the stream waits, and not the host
        for p in unused:
            p.grad = None
        self.arrived.clear(), self.begun.clear()
