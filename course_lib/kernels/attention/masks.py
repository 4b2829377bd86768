"""Which program does what, and which query sees which key: what all kernels of attention agree on.

Causal is aligned bottom-right: the last query sees the last key, query m sees key n where n <= m + n_k - n_q. With
more queries than keys the first n_q - n_k queries see none. `k_lengths` hides the keys from its length on and moves
no diagonal, so in a padded batch of self-attention query m still sees keys 0 .. m. SAME_LENGTHS, backward: the
lengths are those of queries too, so a query behind the length has no gradient and gives none, and blocks of such
queries are not computed (but in one_block.py, where they are few).
"""

import triton
import triton.language as tl

__all__ = [
    "at_run_time",
    "head_start",
    "key_range",
    "keys_of",
    "probabilities",
    "queries_of",
    "query_range",
    "visible",
    "which_head",
]


@triton.jit
def which_head(heads, blocks):
    """Program -> (block, batch, head): blocks of one head stand side by side and share its k and v in the L2 cache.

    One dimension of grid, because the second and third end at 65535, which batch x heads may pass.
    """
    program = tl.program_id(0)
    batch_head = program // blocks
    return program % blocks, batch_head // heads, batch_head % heads


@triton.jit
def head_start(ptr, batch, head, stride, UNIT: tl.constexpr):
    """Where the (rows, head size) matrix of one head begins, in 64 bits."""
    return ptr + (tl.cast(batch, tl.int64) * stride[0] + tl.cast(head, tl.int64) * stride[1]) * UNIT


@triton.jit
def at_run_time(n):
    """n, of which the compiler knows nothing. Triton makes a constant of an argument that is 1. With one key as a
    constant, causal and with more queries, the assembler of Triton 3.6 crashes."""
    if isinstance(n, tl.tensor):
        m = n
    else:
        m = tl.num_programs(1)  # 1 as well: these grids have one dimension
    return m


@triton.jit
def keys_of(lengths_ptr, batch, n_k):
    """How many keys this sequence has: all, or what k_lengths says, held to 0 .. n_k."""
    if lengths_ptr is not None:
        n_k = tl.minimum(tl.maximum(tl.load(lengths_ptr + batch), 0), n_k)
    return n_k


@triton.jit
def queries_of(n_q, n_valid, SAME_LENGTHS: tl.constexpr):
    """How many queries this sequence has: all, or where queries are padded like keys, as many as keys."""
    if SAME_LENGTHS:
        n_q = tl.minimum(n_q, n_valid)
    return n_q


@triton.jit
def visible(offs_m, offs_n, n_valid, diagonal, CAUSAL: tl.constexpr, WHOLE: tl.constexpr):
    """May query m look at key n? The offsets come with the dimensions they are to be broadcast to.

    WHOLE: every block of keys is full, so that only the diagonal is left to ask about.
    """
    if WHOLE:
        mask = offs_n <= offs_m + diagonal
    else:
        mask = offs_n < n_valid
        if CAUSAL:
            mask = mask & (offs_n <= offs_m + diagonal)
    return mask


@triton.jit
def key_range(first_m, n_valid, diagonal, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """For queries from first_m on: the end of the blocks of keys that all of them see whole, and the end of all."""
    full, end = n_valid, n_valid
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(first_m + diagonal + 1, 0))
        end = tl.minimum(end, tl.maximum(first_m + BLOCK_M + diagonal, 0))
    return full // BLOCK_N * BLOCK_N, end


@triton.jit
def query_range(
    first_n, n_q, n_valid, diagonal, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """For keys from first_n on: the first block of queries that sees any, the first that sees all of them, the end."""
    first, full = tl.cast(0, tl.int32), tl.cast(0, tl.int32)
    end = tl.where(first_n < n_valid, n_q, 0)
    if CAUSAL:
        first = tl.maximum(first_n - diagonal, 0) // BLOCK_M * BLOCK_M
        full = tl.cdiv(tl.maximum(first_n + BLOCK_N - 1 - diagonal, 0), BLOCK_M) * BLOCK_M
    # A block of keys that reaches past the last valid one is masked for every query.
    full = tl.where(first_n + BLOCK_N <= n_valid, tl.minimum(full, end), end)
    return first, full, end


@triton.jit
def probabilities(
    s, shift, offs_m, offs_n, n_valid, diagonal, scale_log2,
    CAUSAL: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """exp2(s scale - shift), and 0 out of sight: p of the forward pass again, like s, in fp32.

    shift, offs_m and offs_n come with the dimensions they are to be broadcast to.
    """
    if MASKED:
        see = visible(offs_m, offs_n, n_valid, diagonal, CAUSAL, WHOLE)
        p = tl.exp2(tl.where(see, s * scale_log2 - shift, -float("inf")))
    else:
        p = tl.exp2(s * scale_log2 - shift)
    return p
