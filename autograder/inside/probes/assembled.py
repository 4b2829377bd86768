"""A tower of vision at work: one step forward and backward, and what torch.compile makes of it.

What is computed is told in tensors: the result, and the gradients of all parameters, those of one kind stacked over the
layers. Everything else that is looked at ends in an error that says what was found.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from autograder.inside.calling import Found
from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.recording import launches_go_to
from course_lib.interpreter.launch import is_running
from course_lib.models.siglip import Sizes
from course_lib.models.siglip.frame import unpacked

# What the exercise calls a parameter, and the naive tower; a star stands for the number of a layer.
KINDS = {
    "embed_w": "embed.weight",
    "embed_b": "embed.bias",
    "places": "places",
    "n1_w": "blocks.*.before_attention.weight",
    "n1_b": "blocks.*.before_attention.bias",
    "q_w": "blocks.*.attention.q.weight",
    "q_b": "blocks.*.attention.q.bias",
    "k_w": "blocks.*.attention.k.weight",
    "k_b": "blocks.*.attention.k.bias",
    "v_w": "blocks.*.attention.v.weight",
    "v_b": "blocks.*.attention.v.bias",
    "out_w": "blocks.*.attention.out.weight",
    "out_b": "blocks.*.attention.out.bias",
    "n2_w": "blocks.*.before_mlp.weight",
    "n2_b": "blocks.*.before_mlp.bias",
    "up_w": "blocks.*.up.weight",
    "up_b": "blocks.*.up.bias",
    "down_w": "blocks.*.down.weight",
    "down_b": "blocks.*.down.bias",
    "norm_w": "norm.weight",
    "norm_b": "norm.bias",
}
# The scores of a query all move alike with the bias of the keys, so softmax does not see it: its gradient is 0 on
# paper, and rounding errors in memory. It has to be there, and nobody compares it.
VANISHING = "k_b"
# What is compared: the gradients of a weight and its bias in one tensor.
GROUPS = {
    "d_embed": ("embed_w", "embed_b"),
    "d_places": ("places",),
    "d_n1": ("n1_w", "n1_b"),
    "d_q": ("q_w", "q_b"),
    "d_k": ("k_w",),
    "d_v": ("v_w", "v_b"),
    "d_out": ("out_w", "out_b"),
    "d_n2": ("n2_w", "n2_b"),
    "d_up": ("up_w", "up_b"),
    "d_down": ("down_w", "down_b"),
    "d_norm": ("norm_w", "norm_b"),
}
TORCHS_OWN = {"aten", "prim", "prims", "profiler", "quantized", "inductor", "debugprims"}
# Of what may compute, that by which a GELU can be put together; sums of products and biases are left out.
ELEMENTWISE = set("mul mul_ div div_ reciprocal rsqrt neg clamp clamp_min where masked_fill masked_fill_".split())
# Of the numbers of a layer's rows, how many torch may take one by one or multiply in batches, for each layer and one
# more: norms put together from their parts, forward and backward, take 20. One softmax takes 40, with e to a power
# from products.
MOST = 32
IN_BATCHES = {"bmm", "baddbmm"}  # of matrices with one number each they multiply as well
SAID = 240  # letters of an error of the compiler


def stepped(kind: Callable, patches, lengths, dy, heads: int, later: Sequence[Sequence[int]], gaps: bool, *stacked):
    """y, and the gradients of `GROUPS` for this gradient of y.

    later: lengths of the images of further calls. Where there are some, the tower is compiled as well. gaps: whether
    operators on the hidden layer alone get it in rows with gaps between them.
    """
    given = dict(zip(KINDS, stacked, strict=True))
    sizes = Sizes(
        patch=patches.shape[2],
        patches=patches.shape[1],
        width=given["places"].shape[1],
        mlp=given["up_w"].shape[1],
        heads=heads,
        layers=len(given["up_w"]),
    )
    state = _apart(given)
    with fresh_memory_is_nan():
        tower = _made(kind, sizes, state, patches)
        with _Within(len(patches), sizes, gaps) as within:
            y, gradients = _pass(tower, patches, lengths, dy)
        if within.found:
            raise Found(within.found)
        told = y.detach(), *grouped({kind: _together(gradients, name) for kind, name in KINDS.items()}).values()
    if later:
        with _disable_current_modes():
            _compiled(kind, sizes, state, patches, lengths, dy, later)
    return told


def grouped(gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of gradients by kind: the bias is one more column of its weight, and one more row of that of a norm."""
    found = {}
    for group, kinds in GROUPS.items():
        first, *others = (gradients[kind] for kind in kinds)
        if not others:
            found[group] = first
        elif first.dim() == others[0].dim():
            found[group] = torch.stack([first, others[0]], -2)
        else:
            found[group] = torch.cat([first, others[0][..., None]], -1)
    return found


def _apart(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of the naive tower."""
    found = {}
    for kind, name in KINDS.items():
        if "*" in name:
            found |= {name.replace("*", str(n)): one for n, one in enumerate(given[kind])}
        else:
            found[name] = given[kind]
    return found


def _together(named: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if "*" not in name:
        return named[name]
    before, _, after = name.partition("*")
    return torch.stack([one for n, one in named.items() if n.startswith(before) and n.endswith(after)])


def _made(kind: Callable, sizes: Sizes, state: Mapping[str, torch.Tensor], like: torch.Tensor) -> nn.Module:
    """The tower with these parameters. They get fresh memory first, so that all that they hold was loaded."""
    with _disable_current_modes():
        tower = kind(sizes)
        if not isinstance(tower, nn.Module):
            raise TypeError(f"expected a torch.nn.Module, got {type(tower).__name__}")
        tower = tower.to(like.device, like.dtype)
    if names := [name for name, _ in tower.named_buffers()]:
        raise Found(f"the tower holds the buffer {names[0]}: it is to hold its parameters alone")
    with torch.no_grad():
        for one in tower.parameters():
            one.data = torch.empty(one.shape, dtype=like.dtype, device=like.device)
    tower.load_state_dict(state)
    return tower


def _pass(tower: nn.Module, patches, lengths, dy) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """y and the gradients of all parameters, by the names of the naive tower."""
    parameters = dict(tower.named_parameters())
    versions = {name: one._version for name, one in parameters.items()}
    y = tower(patches, lengths)
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(y).__name__}")
    if not y.requires_grad:
        raise Found("the result has no gradient function")
    found = torch.autograd.grad(y, list(parameters.values()), dy, allow_unused=True)
    for name, one in parameters.items():
        if one._version != versions[name]:
            raise Found(f"the parameter {name} was written over")
    gradients = unpacked({name: one for name, one in zip(parameters, found, strict=True) if one is not None})
    layers = 1 + max((int(name.split(".")[1]) for name in parameters if name.startswith("blocks.")), default=0)
    if missing := _missing(gradients, layers):
        raise Found(f"there is no gradient of {', '.join(missing)}")
    return y, {name: gradients[name] for kind in KINDS.values() for name in _of_layers(kind, layers)}


def _missing(gradients: Mapping[str, torch.Tensor], layers: int) -> list[str]:
    """Names that are not there; with a star where all layers lack one."""
    found = []
    for name in KINDS.values():
        lacking = [one for one in _of_layers(name, layers) if one not in gradients]
        found += [name] if len(lacking) == layers or ("*" not in name and lacking) else lacking
    return found


def _of_layers(name: str, layers: int) -> list[str]:
    return [name.replace("*", str(n)) for n in range(layers if "*" in name else 1)]


class _Within(TorchDispatchMode):
    """Operators of one's own run in their parts, so that other modes see what runs inside of them.

    found: what was made that only kernels are to make, in words; "" as long as there was nothing.
    """

    def __init__(self, images: int, sizes: Sizes, gaps: bool = False):
        super().__init__()
        self.rows, self.sizes, self.gaps, self.found = images * sizes.patches, sizes, gaps, ""
        self.left = MOST * self.rows * sizes.width * (sizes.layers + 1)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func.namespace not in TORCHS_OWN and tensors:
            key = torch._C.DispatchKey.CUDA if tensors[0].is_cuda else torch._C.DispatchKey.CPU
            if self.gaps and self._of_hidden_alone(func, tensors):
                args, kwargs = tree_map_only(torch.Tensor, _with_gaps, (args, kwargs))
            with self:
                return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)
        with self:  # inside of an operator `contiguous` and the like come whole, and no recorder knows them
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        made = func(*args, **kwargs)
        if not is_running():
            known = {one.untyped_storage()._cdata for one in tensors}
            name = func._schema.name.removeprefix("aten::")
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor) and one.is_floating_point():
                    self.found = self.found or self._wrong(name, one, one.untyped_storage()._cdata not in known)
        return made

    def _of_hidden_alone(self, func, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the operator takes tensors of the hidden layer and no others, and writes into none of them."""
        return not func._schema.is_mutable and all(one.numel() == self.rows * self.sizes.mlp for one in tensors)

    def _wrong(self, name: str, made: torch.Tensor, new: bool) -> str:
        pairs = list(made.shape).count(self.sizes.patches) > 1
        # where the patches are many, no other tensor is as large, whatever its shape
        pairs = pairs or (self._many and made.numel() >= self.rows * self.sizes.patches * self.sizes.heads)
        if new and pairs:
            return (
                f"a tensor {tuple(made.shape)} was made, for all pairs of patches: their scores are to be nowhere in "
                "memory"
            )
        if name in ELEMENTWISE and made.numel() == self.rows * self.sizes.mlp:
            return f"torch's {name} computes on all numbers of the hidden layer: GELU and its slope are for kernels"
        self.left -= made.numel() if name in ELEMENTWISE or name in IN_BATCHES else 0
        if self.left < 0:
            return "torch multiplies more numbers than norms and masks need: attention and GELU are for kernels"
        return ""

    @property
    def _many(self) -> bool:
        sizes = self.sizes
        return sizes.patches * sizes.heads > max(3 * sizes.width, sizes.mlp, sizes.patch)


def _with_gaps(x: torch.Tensor) -> torch.Tensor:
    """The same values, in rows that lie twice as far from each other."""
    wide = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    return wide[..., : x.shape[-1]].copy_(x)


# ------------------------------------------------------------------------------------------------ torch.compile


def _compiled(kind: Callable, sizes: Sizes, state, patches, lengths, dy, later: Sequence[Sequence[int]]) -> None:
    """Whether the tower becomes one graph, once and for all, forward and backward. No kernel runs meanwhile."""
    from torch._dynamo.backends.common import aot_autograd  # slow to import, so only where something is compiled

    from course_lib import torch_inside
    from course_lib.torch_inside.reuse import settings

    tower = _made(kind, sizes, state, patches)
    graphs: list[fx.GraphModule] = []
    described: list[str] = []
    functional = aot_autograd(
        fw_compiler=lambda module, _: _as_told(module, described),
        bw_compiler=lambda module, _: _as_told(module, described),
    )

    def backend(module, inputs):
        graphs.append(module)
        return functional(module, inputs)

    torch._dynamo.reset()
    silent = contextlib.redirect_stdout(io.StringIO())
    eager, fast = Counter(), Counter()
    with settings(recompile_limit=64), silent, torch_inside.watch() as seen:
        with _launches_noted(eager):
            _pass(tower, patches, lengths, dy)
        compiled = torch.compile(tower, backend=backend)
        with _launches_noted(fast):
            _called(compiled, tower, patches.clone(), lengths.clone(), dy)  # no views, as those of later calls
        first = len(graphs)
        reasons = list(dict.fromkeys(one.reason for one in torch_inside.breaks(seen)))
        if first != 1 or reasons:
            because = f", for a graph ends because {reasons[0]:.{SAID}}" if reasons else ""
            raise Found(f"under torch.compile the first call made {first} graphs where one was asked for{because}")
        if described:
            raise Found(f"under torch.compile {described[0]}")
        if eager != fast:
            missing = sorted((eager - fast) or (fast - eager))[0]
            raise Found(
                f"under torch.compile the kernel {missing} was launched {fast[missing]} times in a step, and "
                f"{eager[missing]} times without it"
            )
        for number, of_images in enumerate(later, 2):
            again = torch.tensor(of_images, dtype=lengths.dtype, device=lengths.device)
            given = patches[:1].expand(len(again), -1, -1).clone(), again, dy[:1].expand(len(again), -1).clone()
            with _launches_noted(Counter()):
                _called(compiled, tower, *given)
            if len(graphs) > first:
                what = "with other lengths" if len(again) == len(lengths) else f"for {len(again)} images"
                raise Found(f"call {number}, {what}, was compiled again, where one graph is to be for all")


def _called(compiled: Callable, tower: nn.Module, patches, lengths, dy) -> None:
    for tensor in (patches, lengths):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    try:
        y = compiled(patches, lengths)
        torch.autograd.grad(y, list(tower.parameters()), dy, allow_unused=True)
    except Exception as error:
        raise Found(f"under torch.compile the step raised {type(error).__name__}: {_said(error)}") from None


def _said(error: Exception) -> str:
    """What the compiler says, from where it names the cause on."""
    text = " ".join(str(error).split())
    cause = text.partition(": got ")[2] or text
    return cause.partition(" Hint: ")[0][:SAID]


@contextlib.contextmanager
def _launches_noted(names: Counter) -> Iterator[None]:
    """Inside, kernels are counted by name, in place of being run."""

    def note(function, grid, args, kwargs) -> None:
        names[function.__name__] += 1

    with launches_go_to(note):
        yield


def _as_told(module: fx.GraphModule, described: list[str]) -> Callable:
    """The graph, run node by node. In its first run results of operators of one's own are compared with what the
    compiler was told of them.
    """
    from torch._functorch.aot_autograd import make_boxed_func  # slow to import as well

    return make_boxed_func(_Told(module, described).run)


class _Told(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, described: list[str]):
        super().__init__(module)
        self.described, self.runs = described, 0

    def run(self, *args, **kwargs):
        self.runs += 1
        return super().run(*args, **kwargs)

    def run_node(self, node: fx.Node):
        made = super().run_node(node)
        own = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in TORCHS_OWN
        if own and self.runs == 1:
            for fake, real in zip(tree_leaves(node.meta.get("val")), tree_leaves(made), strict=False):
                self._compare(str(node.target), fake, real)
        return made

    def _compare(self, name: str, fake, real) -> None:
        if not isinstance(fake, torch.Tensor) or not isinstance(real, torch.Tensor):
            return
        for what, told, came in (
            ("shape", _numbers(fake.shape), list(real.shape)),
            ("type", fake.dtype, real.dtype),
            ("strides", _numbers(fake.stride()), list(real.stride())),
        ):
            if told != came:
                self.described.append(f"the fake result of {name} has the {what} {told}, and the real one {came}")


def _numbers(sizes) -> list[int]:
    """Sizes that may be symbols, as the numbers that they stand for in the first call."""
    return [int(one.node.hint) if isinstance(one, torch.SymInt) else int(one) for one in sizes]
