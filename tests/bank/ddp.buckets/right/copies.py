"""Filled by torch.cat when a bucket is complete, and copied back in finish()."""

import contextlib

import torch
import torch.distributed as dist


class Buckets:
    def __init__(self, module, mib, static=False):
        self.static, self.anywhere = static, None
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)
        self.params = [p for p in module.parameters() if p.requires_grad][::-1]
        self.buckets, open_, size = [], {}, {}
        for p in self.params:
            if p.dtype not in open_ or size[p.dtype] + p.nbytes > mib * 2**20:
                open_[p.dtype], size[p.dtype] = [], 0
                self.buckets.append(open_[p.dtype])
            open_[p.dtype].append(p)
            size[p.dtype] += p.nbytes
        self.active, self.came, self.sent = True, set(), []
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p):
        if self.active:
            self.came.add(id(p))
            while len(self.sent) < len(self.buckets):
                if not all(id(q) in self.came for q in self.buckets[len(self.sent)]):
                    break
                self.send()

    def send(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.buckets[len(self.sent)]]
        buffer = torch.cat([grad.reshape(-1) for grad in grads])
        self.sent.append((buffer, dist.all_reduce(buffer, async_op=True)))

    @contextlib.contextmanager
    def no_sync(self):
        self.active = False
        try:
            yield
        finally:
            self.active = True

    def finish(self):
        used = torch.tensor([int(p.grad is not None) for p in self.params], device=self.params[0].device)
        while len(self.sent) < len(self.buckets):
            self.send()
        if self.anywhere is None or not self.static:
            dist.all_reduce(used, op=dist.ReduceOp.MAX)
            self.anywhere = dict(zip(map(id, self.params), used.tolist()))
        for params, (buffer, work) in zip(self.buckets, self.sent):
            work.wait()
            buffer /= dist.get_world_size()
            for p, part in zip(params, buffer.split([p.numel() for p in params])):
                p.grad = part.view(p.shape).clone() if self.anywhere[id(p)] else None
        self.came, self.sent = set(), []
