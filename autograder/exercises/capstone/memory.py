"""capstone.memory: a vision tower that holds half of what the strong one does, and says beforehand what it will hold.

    FrugalTower(sizes) -> a torch.nn.Module
    FrugalTower(sizes)(patches, lengths) -> (B, width)
    FrugalTower.planned(sizes, images, bytes_a_number) -> dict, what you call it: bytes held over all layers

`sizes` is course_lib.models.vision.Sizes. patches (B, N, numbers a patch), N = sizes.patches, and lengths (B,),
integers from 1 to N, are those of course_lib.models.siglip.naive.Tower, and so are the result, the gradients of all
parameters, and the names of the parameters: the tower takes the naive tower's state dict, and layers that it packs are
called "attention.qkv". What lies behind a length may be NaN, and shows nowhere; its rows are computed and held like all
others. Everything runs on the CPU, in fp32 and in fp64.

**Held** is all memory that exists between the two passes and that operators made or wrote in the first, whoever holds
it: autograd, a context, a list, the module. Parameters, patches, lengths and the result do not count. In the cases
"within 0.75" at most 0.75 of what course_lib.models.siglip.strong.Tower holds at the same sizes may be held, in those
"within 0.55" at most 0.55, in those of "the plan" 0.75. What is held is read by the backward pass, but for 2 %; in the
cases of "the plan" but for less than one number of each patch.

**Computing again** has a price: the products of the backward pass take at most 1.2 times the FLOP of the strong
tower's. Counted are 2 m n k of each product; attention as one operator counts as 2 products forward and 5 backward. So
one product of the MLP may be made again, or q, k and v, and not all of them. torch.utils.checkpoint is allowed: around
the norm and the MLP it is a right answer, around a whole block it takes too many products.

**planned** is asked before the tower exists, in the cases of "the plan": its sum is off by less than one number of each
patch, images * patches * bytes_a_number, from what is then held. So it may leave out a mask of booleans and the number
of patches of each image, and not what a norm notes of each row. It computes with numbers, not with tensors.
bytes_a_number is 4 in fp32 and 8 in fp64.

Only torch's own operators run, in the thread that calls. What is held is held in tensors.
"""

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.capstone.memory_mistakes import MISTAKES
from autograder.exercises.capstone.memory_rules import accept, truth
from autograder.exercises.places import counted

# ------------------------------------------------------------------------------------------------- the cases


def _call(
    d: Draw, layers=2, heads=None, head=None, images=None, patches=None, patch=None, full=False, nan=False, share=0.0,
    plan=False, dtype="float32",
) -> Call:  # fmt: skip
    """share: of the strong tower's, at most held. Without it only results and gradients are looked at.

    The MLP is 3.75 to 3.95 times as wide as the tower. So what the strong tower holds, 8 widths and 2 hidden layers of
    each row and layer, is above 0.75 without the result of GELU, below it without the norms' too; below 0.55 without
    both hidden layers. It has somewhat fewer rows than widths, so that a copy of weights is in between as well.
    """
    heads = heads or d.integer(3, 4)
    width, images = heads * (head or d.integer(20, 26)), images or d.integer(2, 4)
    patches = patches or round(width * d.number(0.78, 0.98) / images)
    sizes = {
        "patch": round(width * (patch or d.number(0.3, 0.5))),
        "patches": patches,
        "width": width,
        "mlp": round(width * d.number(3.75, 3.95)),
        "heads": heads,
        "layers": layers,
    }
    lengths = [patches] * images if full else _lengths(d, images, patches)
    case = {"sizes": sizes, "lengths": lengths, "nan": nan, "dtype": dtype, "seed": d.integer(0, 2**31)}
    case["asks"] = {"share": share, "plan": plan} if share else {}
    told = f"{counted(layers, 'layer')}, width {width}, {counted(heads, 'head')}, {images} x {patches} patches, {dtype}"
    return Call({"case": case}, told)


def _lengths(d: Draw, images: int, patches: int) -> list[int]:
    """At least one image is padded by several patches. Of several the last is not: the last row of all is real."""
    lengths = [d.integer(2, patches) for _ in range(images)]
    lengths[-1] = patches
    lengths[d.integer(0, max(0, images - 2))] = d.integer(2, patches // 2)
    return lengths


def _small(d: Draw, **how) -> Call:
    return _call(d, head=d.integer(5, 8), patches=d.integer(7, 12), **how)


def _long(d: Draw, **how) -> Call:
    """Where the probabilities of a layer have four widths a row."""
    return _call(d, heads=5, head=d.integer(17, 19), images=2, patches=d.integer(77, 84), **how)


def _many_heads(d: Draw, **how) -> Call:
    sizes = {"heads": d.integer(13, 16), "head": d.integer(4, 5), "images": 3, "patches": d.integer(24, 31)}
    return _call(d, share=0.75, **sizes, **how)


CASES = (
    Case("images of full length", lambda d: _small(d, full=True)),
    Case("short images", lambda d: _small(d, images=d.integer(3, 5))),
    Case("NaN behind the lengths", lambda d: _small(d, nan=True)),
    Case("one image", lambda d: _small(d, images=1, layers=3)),
    Case("within 0.75", lambda d: _call(d, share=0.75, nan=True)),
    Case("within 0.75, many heads", _many_heads),
    Case("within 0.75, long images", lambda d: _long(d, share=0.75)),
    Case("within 0.55", lambda d: _call(d, share=0.55)),
    Case("within 0.55, many layers", lambda d: _call(d, share=0.55, layers=5, images=2), live=False),
    Case("within 0.55, long images", lambda d: _long(d, share=0.55, layers=3)),
    Case("within 0.55, fp64", lambda d: _call(d, share=0.55, dtype="float64", nan=True)),
    Case("the plan, one layer", lambda d: _call(d, plan=True, share=0.75, layers=1)),
    Case("the plan, many layers", lambda d: _call(d, plan=True, share=0.75, layers=5, images=2, patch=0.6), live=False),
    Case(
        "the plan, many images", lambda d: _call(d, plan=True, share=0.75, nan=True, images=d.integer(7, 9), patches=13)
    ),
    Case("the plan, many heads", lambda d: _many_heads(d, plan=True)),
    Case("the plan, long patches", lambda d: _call(d, plan=True, share=0.75, patch=d.number(2.0, 2.5))),
    Case("the plan, fp64", lambda d: _call(d, plan=True, share=0.75, dtype="float64")),
)

MEMORY = Exercise(
    name="capstone.memory",
    entry="FrugalTower",
    points=6,
    about="half of the memory between the passes, planned before it is held",
    point=("within 0.55", "the plan, many images"),
    kind="scenario",
    cases=CASES,
    oracle=truth,
    mistakes=MISTAKES,
    returns=("results", "gradients", "memory"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.holding:measured",
)
