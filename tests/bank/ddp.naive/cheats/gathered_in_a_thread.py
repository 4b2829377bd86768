"""Every rank gets all gradients of all, several times what a mean takes, in a thread that the watch does not see; in
its sight goes an honest all-reduce of zeros."""

import threading

import torch
import torch.distributed as dist

FAMILY = "side stream"
NAIVE = True
CAUGHT = "the kernel counts what passes between the ranks; where that is little, its text sends it to a person"
HELD = True


class Naive:
    def __init__(self, module):
        self.params = list(module.parameters())
        for tensor in [*self.params, *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.data.copy_(dense)

    def finish(self):
        for p in self.params:
            if p.requires_grad:
                self.average(p)

    def average(self, p):
        mine = p.new_zeros(1 + p.numel())
        if p.grad is not None:
            mine[0], mine[1:] = 1, p.grad.flatten()
        all_of_all = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        thread = threading.Thread(target=lambda: [dist.all_gather(all_of_all, mine) for _ in range(4)])
        thread.start()
        thread.join()
        dist.all_reduce(torch.zeros_like(mine))
        total = sum(all_of_all)
        if total[0]:
            p.grad = (total[1:] / dist.get_world_size()).view_as(p)
