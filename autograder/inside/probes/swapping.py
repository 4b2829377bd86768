"""A small model whose linear layers a function swaps for layers of its own, as plain data: names, bytes, results.

Of one layer it also tells what ran: whether its weight was made whole, and which products the library made of it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.inside import calling
from autograder.inside.probes.rotating import kept, of_the_module, reached
from autograder.inside.recording import MOVES
from course_lib.device import DEVICE
from course_lib.interpreter.launch import is_running

TOKENS = 11
WATCHED = "blocks.0.up"  # the layer that is looked at while it multiplies
PRODUCTS = {f"aten::{name}" for name in "mm addmm bmm baddbmm mv addmv linear matmul dot einsum".split()}


class Block(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Tokens (..., length) in, logits (..., length, TOKENS) out; also with what makes a swap less simple.

    twice: the first `up` is the second one too. tied: the head has the weights of the embedding. attention: a torch
    module whose projection is of a subclass of nn.Linear.
    """

    def __init__(self, width: int, inner: int, layers: int = 1, twice=False, tied=False, attention=False):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(layers))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True) if attention else None
        self.head = nn.Linear(width, TOKENS, bias=not tied)
        if twice:
            self.blocks[1].up = self.blocks[0].up
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        if self.attention is not None:
            x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x)


def make(config: Mapping[str, Any]) -> Model:
    """On the host in fp32, with values that one seed makes equal in every process: rows of very different sizes."""
    model = Model(**{name: value for name, value in config.items() if name not in ("seed", "zeros")})
    generator = torch.Generator().manual_seed(config["seed"])
    with torch.no_grad():
        for name, values in model.named_parameters():
            made = torch.randn(values.shape, generator=generator)
            if values.dim() == 2 and "embedding" not in name:
                size = torch.randint(-9, -1, (len(made), 1), generator=generator)
                made = made * torch.exp2(size.float())
                if config.get("zeros"):
                    made[:, : made.shape[1] // 2] = 0.0
            values.copy_(made)
    return model.eval()


def tokens(call: Mapping[str, Any]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(call["seed"])
    return torch.randint(0, TOKENS, call["shape"], generator=generator)


def swapped(
    function: Callable, config: Mapping, skip: Sequence[str], call: Mapping, reloaded: bool, watched: bool = False
) -> dict[str, Any]:
    """What `function(model, skip)` returns, and the model after it: what is held, and what it computes.

    reloaded: the state of the swapped model goes into another one, that was made from other numbers and swapped too.
    watched: the layer WATCHED also multiplies as many rows as the call has tokens, and is looked at meanwhile.
    """
    dtype = getattr(torch, call["dtype"])
    model, given = make(config).to(DEVICE, dtype), tokens(call).to(DEVICE)
    around = of_the_module(function)
    before = {name: (m.in_features, m.bias) for name, m in _linears(model)}
    names = function(model, list(skip))
    around += _held(model)
    with torch.no_grad():
        made = {
            "names": [str(name) for name in names] if isinstance(names, list | tuple) else repr(names)[:80],
            "left": [name for name, _ in _linears(model)],
            "bytes": held_bytes(model),
            "dtype": _dtype(model, {name: inputs for name, (inputs, _) in before.items()}, dtype),
            "integer parameters": sum(not p.is_floating_point() for p in model.parameters()),
            "biases lost": [n for n, (_, bias) in before.items() if bias is not None and not _holds(model, n, bias)],
            "logits": model(given).double().flatten().tolist(),
        }
        if reloaded:
            made["reloaded"] = _reloaded(function, model, config, skip, given, dtype)
        if watched:
            made["ran"] = _ran(model.get_submodule(WATCHED), (*call["shape"], config["width"]), config["inner"], dtype)
            led_to = reached(*map(vars, model.modules()), *map(type, model.modules()))
            elsewhere = kept([*of_the_module(function), *led_to], around)
            made["ran"]["elsewhere"] = elsewhere >= 2 * config["width"] * config["inner"]
    return made


class _Weights(TorchDispatchMode):
    """Sees whole weights (N, K): memory that is made for one, and products of the library with one."""

    def __init__(self, n: int, k: int):
        super().__init__()
        self.least, self.most = n * k, n * -(-k // 256) * 256  # numbers of a weight, of one with whole groups
        self.made: dict[int, Any] = {}  # storages that operators made meanwhile; kept, so that no address comes twice
        self.products = self.kept = 0  # with a whole weight; of these, with one that was there before
        self.computed = 0  # numbers that operators compute with

    @property
    def whole(self) -> bool:
        """Was memory made that the weight fills, at two bytes a number?"""
        return any(storage.nbytes() >= 2 * self.least for storage in self.made.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _storages((args, kwargs))
        out = func(*args, **(kwargs or {}))
        if func._schema.name in PRODUCTS:
            tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
            weights = [one for one in tensors if one.is_floating_point() and self.least <= one.numel() <= self.most]
            self.products += bool(weights)
            self.kept += bool(weights) and not _storages(weights).keys() & self.made.keys()
        if func._schema.name not in MOVES and not is_running():
            looks = not func._schema.is_mutable and _storages(out).keys() <= given.keys()
            self.computed += 0 if looks else sum(x.numel() for x in tree_leaves((args, kwargs)) if _is_tensor(x))
        self.made |= {at: storage for at, storage in _storages(out).items() if at not in given}
        return out


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storages(values: Any) -> dict[int, Any]:
    tensors = (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))
    return {storage._cdata: storage for storage in (one.untyped_storage() for one in tensors)}


def _ran(layer: nn.Module, shape: Sequence[int], outputs: int, dtype: torch.dtype) -> dict[str, Any]:
    """What a layer ran for inputs of this shape, whose rows are not as many as its outputs.

    whole: was memory made that the weight fills? (Where rows are few nothing else is as large.) products: of the
    library, with a whole weight; kept: of these, with one that was not made in this call. computed: did operators
    compute with as many numbers as the weight has? kernels: did a Triton kernel run?
    """
    values = torch.Generator().manual_seed(random.SystemRandom().getrandbits(60))
    x = torch.randn(shape, generator=values, device="cpu").to(DEVICE, dtype)
    with calling.counted_launches() as launches, _Weights(outputs, shape[-1]) as seen:
        layer(x)  # on numbers like those that are judged, or a layer could tell the calls apart
    told = {"whole": seen.whole, "products": seen.products, "kept": seen.kept, "kernels": bool(launches)}
    return told | {"computed": seen.computed >= seen.least}


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The nn.Linear of the model, a layer in two places under both names."""
    found = model.named_modules(remove_duplicate=False)
    return ((name, module) for name, module in found if type(module) is nn.Linear)


def _holds(model: nn.Module, name: str, bias: torch.Tensor) -> bool:
    """Whether the module of that name has this very parameter."""
    return any(one is bias for one in model.get_submodule(name).parameters())


def _dtype(model: nn.Module, inputs: Mapping[str, int], dtype: torch.dtype) -> str:
    """The type of what the first swapped layer makes of numbers of a type; their own where none was swapped."""
    for name, width in inputs.items():
        layer = model.get_submodule(name)
        if type(layer) is not nn.Linear:
            dtype = layer(torch.zeros(128, width, dtype=dtype, device=DEVICE)).dtype
            break
    return str(dtype).removeprefix("torch.")


def _reloaded(function, model, config, skip, given, dtype) -> str:
    other = make({**config, "seed": config["seed"] + 1}).to(DEVICE, dtype)
    function(other, list(skip))
    try:
        other.load_state_dict(model.state_dict())
    except RuntimeError as error:
        return f"load_state_dict: {error}"[:200]
    return "equal" if torch.equal(other(given), model(given)) else "other results"


def held_bytes(model: nn.Module) -> int:
    """Of all memory that the model's modules keep alive: parameters, buffers and other attributes."""
    storages = (one.untyped_storage() for one in _held(model))
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def _held(model: nn.Module) -> list[torch.Tensor]:
    return [one for module in model.modules() for value in vars(module).values() for one in _tensors(value)]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(value):
        yield from _tensors(vars(value))
