"""Gradients are views of their bucket, and become so again when they were let go of."""

import contextlib

import torch
import torch.distributed as dist


class Buckets:
    def __init__(self, module, mib, static=False):
        self.syncing, self.works, self.buckets = True, [], []
        self.static, self.anywhere = static, None
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)
        self.params = [p for p in module.parameters() if p.requires_grad][::-1]
        for p in self.params:
            last = next((b for b in reversed(self.buckets) if b["params"][0].dtype == p.dtype), None)
            if last is None or sum(q.nbytes for q in last["params"]) + p.nbytes > mib * 2**20:
                last = {"params": []}
                self.buckets.append(last)
            last["params"].append(p)
            p.register_post_accumulate_grad_hook(lambda p, bucket=last: self.hook(p, bucket))
        for bucket in self.buckets:
            params = bucket["params"]
            bucket["buffer"] = torch.zeros(
                sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device
            )
            parts = bucket["buffer"].split([p.numel() for p in params])
            bucket["views"] = {p: part.view(p.shape) for p, part in zip(params, parts)}
            bucket["waits"] = set(params)

    def hook(self, p, bucket):
        if self.syncing:
            self.put(p, bucket)
            while len(self.works) < len(self.buckets) and not self.buckets[len(self.works)]["waits"]:
                self.begin()

    def put(self, p, bucket):
        view = bucket["views"][p]
        if p.grad is not view:
            p.grad = view.copy_(p.grad)
        bucket["waits"].discard(p)

    def begin(self):
        buffer = self.buckets[len(self.works)]["buffer"]
        buffer /= dist.get_world_size()
        self.works.append(dist.all_reduce(buffer, async_op=True))

    @contextlib.contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True

    def finish(self):
        used = torch.tensor([float(p.grad is not None) for p in self.params], device=self.params[0].device)
        for bucket in self.buckets:
            for p in list(bucket["waits"]):
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.put(p, bucket)
        while len(self.works) < len(self.buckets):
            self.begin()
        for work in self.works:
            work.wait()
        if self.anywhere is None or not self.static:
            dist.all_reduce(used)
            self.anywhere = used.tolist()
        for p, anywhere in zip(self.params, self.anywhere):
            if not anywhere:
                p.grad = None
        self.works = []
        for bucket in self.buckets:
            bucket["waits"] = set(bucket["params"])
