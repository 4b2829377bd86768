"""Small models, each with one thing that data parallel training easily gets wrong; in one process or several."""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.distributed import place

BATCH = 12  # divisible by 2, 3 and 4 ranks
WIDTH = 7


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, 11), nn.Linear(11, 5, bias=False), nn.Linear(5, 1)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Tied(Plain):
    """The first layer's weight is the last one's too."""

    def __init__(self):
        super().__init__()
        self.third = nn.Linear(11, WIDTH)
        self.third.weight = nn.Parameter(self.first.weight.detach().T.contiguous())
        self.first.weight = self.third.weight

    def forward(self, x):
        return self.third(torch.tanh(F.linear(x, self.first.weight.T, self.first.bias)))


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)


class Unused(Plain):
    """One layer that no shard uses, in the middle of the others."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 3)
        self.fourth = nn.Linear(1, 1)

    def forward(self, x):
        return self.fourth(super().forward(x))


class Routed(Plain):
    """Two experts; of the whole batch both see something, of a shard perhaps only one."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(1, 2), nn.Linear(1, 2)

    def forward(self, x):
        h, goes_left = super().forward(x), x[:, 0] > 0
        out = h.new_zeros(len(x), 2)
        for expert, rows in ((self.left, goes_left), (self.right, ~goes_left)):
            if rows.any():
                out = out.index_put((rows.nonzero()[:, 0],), expert(h[rows]))
        return out


class Mixed(Plain):
    """Parameters of two types."""

    def __init__(self):
        super().__init__()
        self.second.float()

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)).float())).double())


class Strided(nn.Module):
    """Weights that do not lie row by row, and layers that are not used in the order in which they were made."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.convolution = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.first = nn.Linear(WIDTH, 12)
        self.first.weight = nn.Parameter(torch.randn(WIDTH, 12).T)

    def forward(self, x):
        h = self.convolution(self.first(x).view(-1, 3, 2, 2))
        return self.last(h.flatten(1))


class Wide(Plain):
    """Weights that are large enough to travel alone, one of them column by column."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, 96), nn.Linear(96, 96), nn.Linear(96, 1)
        self.second.weight = nn.Parameter(self.second.weight.detach().T)


class Gaps(Plain):
    """A weight that is every other column of something larger."""

    def __init__(self):
        super().__init__()
        self.first.weight = nn.Parameter(torch.randn(11, 2 * WIDTH)[:, ::2])


class Normed(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return super().forward(self.norm(x))


ALIKE = {model.__name__: model for model in (Plain, Tied, Frozen, Unused, Routed, Mixed, Strided, Wide, Gaps)}


def made(model, seed: int) -> nn.Module:
    """In fp64, so that what differs is a mistake and not rounding; a model may make a layer of its own fp32."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return model()
    finally:
        torch.set_default_dtype(before)


def batch(step: int, part: int = 0) -> torch.Tensor:
    """The whole batch; its first half has a positive first column, so that routes differ between shards."""
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + part))
    x[:, 0] = x[:, 0].abs() * torch.tensor([1.0] * (BATCH // 2) + [-1.0] * (BATCH // 2), dtype=torch.float64)
    return x


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.1)


def single(model, steps: int, parts: int = 1, **options) -> list[dict]:
    """Gradients and weights after each step of training on the whole batch."""
    module = made(model, 0)
    optimizer = adamw([p for p in module.parameters() if p.requires_grad])
    seen = []
    for step in range(steps):
        optimizer.zero_grad(**options)
        for part in range(parts):
            (module(batch(step, part)).square().mean() / parts).backward()
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
        optimizer.step()
        seen.append({"grads": grads, "weights": {n: p.detach().clone() for n, p in module.named_parameters()}})
    return seen


def ranked(rank: int, ranks: int, wrap, model, steps: int, parts: int = 1, **options) -> list[dict]:
    """The same on one rank, which starts from weights of its own."""
    module = made(model, rank).to(place())
    ddp = wrap(module)
    optimizer = None if hasattr(ddp, "step") else adamw([p for p in module.parameters() if p.requires_grad])
    seen = []
    for step in range(steps):
        ddp.zero_grad(**options)
        for part in range(parts):
            shard = batch(step, part).chunk(ranks)[rank].to(place())
            loss = ddp(shard).square().mean() / parts
            if part < parts - 1:
                with ddp.no_sync():
                    loss.backward()
            else:
                loss.backward()
        ddp.finish()
        grads = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
        ddp.step() if optimizer is None else optimizer.step()
        seen.append({"grads": grads, "weights": {n: p.detach().clone() for n, p in module.named_parameters()}})
    return seen
