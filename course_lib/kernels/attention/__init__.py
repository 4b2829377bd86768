"""Attention, FlashAttention-2: neither the scores nor the probabilities are ever written to device memory.

    s = scale q kᵀ    p = softmax of the rows of s    o = p v    L = log sum_n exp s[m, n]

q (B, H, n_q, D), k and v (B, H_kv, n_k, D), H a multiple of H_kv: query heads share keys in groups of H / H_kv.

Forward:   4 B H n_q n_k D FLOP, and B H (2 n_q + 2 n_k / group) D x element size + 4 B H n_q bytes.
Backward: 10 B H n_q n_k D FLOP are counted (5 products); one pass makes 5, two passes 7.
A causal mask halves both for n_q = n_k. At 4096 keys and 2 bytes an element that is about 1000 FLOP a byte: far right
of any ridge, so the tensor cores set the time. Plain torch writes s and p, n_k elements a row each, and is left of it.

    masks      which program does what, and which query sees which key
    rows       the rows of a head in two blocks of columns, and what is done with both
    tuning     the tables of blocks, and which of two rungs runs: plain Triton, or on an H100 or H200, where it was
               measured faster, the Gluon kernels below
    walk       the loop over keys of the two forward kernels in plain Triton
    forward    o and L
    parts      o and L of few queries and many keys: keys split over programs, and a second kernel that merges
    terms      shift and delta, two numbers of each query that the backward pass needs
    backward   dq, then dk and dv; backward_tiles: what one program does; side_by_side: both at once, of few tiles
    one_block  all three gradients by one program, where one block holds the keys of a head
    groups     kernels in Gluon whose warps have jobs: what groups_forward, groups_dkdv and groups_onepass share
               groups_tiles: the order of the forward kernel's tiles; groups_softmax: its softmax of one block
    sums       before and after groups_onepass, which makes all three gradients in one pass and adds to dq; its part
               before is side_by_side's too
    public     the reference, autograd, the operator, `attention`
"""

from course_lib.kernels.attention.public import attention, attention_operator, attention_reference

__all__ = ["attention", "attention_operator", "attention_reference"]
