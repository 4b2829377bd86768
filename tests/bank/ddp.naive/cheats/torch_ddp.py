"""torch's own DDP does the work: its reducer is made ready before each forward pass of the module, by a hook."""

from torch.nn.parallel import DistributedDataParallel

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "its text names DistributedDataParallel: a person looks"
HELD = True


class Naive:
    def __init__(self, module):
        if not any(p.requires_grad for p in module.parameters()):
            return
        self.ddp = DistributedDataParallel(module, find_unused_parameters=False)
        module.register_forward_pre_hook(lambda module, args: self.ddp.reducer.prepare_for_forward())
        module.register_forward_hook(lambda module, args, out: self.ddp.reducer.prepare_for_backward([]))

    def finish(self):
        pass
