"""Mistakes that people make in kernels of every unit, each defined once. Arguments say what differs between kernels."""

from collections.abc import Callable, Sequence

from autograder.exercise import Mistake, Values

OUT_NEVER_WRITTEN = Mistake(
    "out_never_written",
    "`out` was not written at all. The function fills the `out` it is given; what it returns is not looked at.",
    sign=lambda e: e.all_failing_unwritten("out"),
)

NOT_DIFFERENTIABLE = Mistake(
    "not_differentiable",
    "The result knows no gradient: the kernels run inside a torch.autograd.Function, called by its `apply`.",
    sign=lambda e: e.raised("has no gradient function"),
)

MASK_ONE_TOO_LONG = Mistake(
    "mask_one_too_long",
    "Exactly one element past the end is touched: the mask should be `offs < n`, not `offs <= n`.",
    sign=lambda e: e.wrote_outside("out", "after", count=1),
)


def int32_offset(of: str, index: str) -> Mistake:
    """of: what lies far apart, such as "a row"; index: its number in the kernel."""
    return Mistake(
        "int32_offset",
        f"Right until {of} begins 2^31 elements behind the first, wrong beyond: the offset overflows 32 bits. "
        f"Widen first: `{index}.to(tl.int64) * stride`.",
        sign=lambda e: e.failed_only("offsets past 2^31"),
    )


def grid_dimension(programs: str, what: str, *cases: str) -> Mistake:
    return Mistake(
        "grid_dimension",
        f"Nothing is launched past 65535 {programs}: the second and third dimension of a grid end there. Put {what} "
        "into the first.",
        sign=lambda e: e.failed_only(*cases),
    )


def inputs_changed(*names: str, says: str = "") -> Mistake:
    return Mistake(
        "inputs_changed",
        says or "An input was changed: scale or convert what was loaded, and leave what lies in memory.",
        sign=lambda e: any(e.changed(name) for name in names),
    )


def x_changed(where_results_belong: str) -> Mistake:
    return Mistake("writes_into_x", f"`x` was changed: {where_results_belong}.", sign=lambda e: e.changed("x"))


def never_written(says: str, *outputs: str) -> Mistake:
    """One of the outputs was written in no failing case."""
    return Mistake("never_written", says, sign=lambda e: any(e.all_failing_unwritten(name) for name in outputs))


def none_written(says: str, *outputs: str) -> Mistake:
    """No output was written in any failing case."""
    return Mistake("never_written", says, sign=lambda e: all(e.all_failing_unwritten(name) for name in outputs))


def no_mask_on_store(says: str, *outputs: str) -> Mistake:
    return Mistake("no_mask_on_store", says, sign=lambda e: any(e.wrote_outside(name) for name in outputs))


def output_stride_ignored(apart: str) -> Mistake:
    """apart: how far apart a kernel that forgets `out.stride(0)` takes the rows to be, such as "N"."""
    return Mistake(
        "output_stride_ignored",
        f"The rows of `out` are taken to lie {apart} apart: use `out.stride(0)`.",
        sign=lambda e: e.failed_only("strided output") and e.wrote_outside("out", "gaps"),
    )


def no_mask(says: str) -> Mistake:
    """What lies behind the last element was loaded, so NaN from the fence was stored there."""
    return Mistake("no_mask", says, sign=lambda e: e.wrote_outside("out", "after", nan=True))


def mask_on_load_only(says: str) -> Mistake:
    return Mistake("mask_on_load_only", says, sign=lambda e: e.wrote_outside("out", "after", nan=False))


def number_of_gradients(none_for: str = "") -> Mistake:
    return Mistake(
        "number_of_gradients",
        "`backward` returns one value for every argument of `forward`, in their order"
        + (f": None for {none_for}." if none_for else "."),
        sign=lambda e: e.raised("incorrect number of gradients"),
    )


def mask_one_too_short(only: Callable[[Values, slice], Values]) -> Mistake:
    """only(arguments, elements): the right answer in these elements of x, in row-major order, and NaN elsewhere."""
    return Mistake(
        "mask_one_too_short",
        "The very last element is never computed: the mask should be `offs < n`, not `offs < n - 1`.",
        answer=lambda v: only(v, slice(0, v["x"].numel() - 1)) if v["x"].numel() else {},
    )


def blocks_missing(only: Callable[[Values, slice], Values], blocks: Sequence[int]) -> tuple[Mistake, ...]:
    """What goes wrong between programs that take a block of elements each; `only` as above."""
    return (
        Mistake(
            "grid_off_by_one",
            "The last partial block is never computed: the grid rounds down. Use `triton.cdiv(n, BLOCK)` programs.",
            answer=lambda v, block: only(v, slice(0, v["x"].numel() // block * block)),
            variants=tuple(blocks),
        ),
        Mistake(
            "one_program",
            "Only the first block is computed. Launch `triton.cdiv(n, BLOCK)` programs, and let each begin "
            "at `tl.program_id(0) * BLOCK`.",
            answer=lambda v, block: only(v, slice(0, block)),
            variants=tuple(blocks),
        ),
        Mistake(
            "program_id_not_scaled",
            "Programs overlap: program p starts at p, not at p * BLOCK. Multiply the program id by the block size.",
            answer=lambda v, block: only(v, slice(0, -(-v["x"].numel() // block) + block - 1)),
            variants=tuple(blocks),
        ),
    )
