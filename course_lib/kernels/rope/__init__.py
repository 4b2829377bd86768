"""Rotary position embedding: q and k turned in place, by one launch, in one read and one write of device memory.

    pair j of a head is turned by the angle  position * f_j        f_j = base^(-2 j / R)        j = 0 .. R / 2 - 1

    y0 = x0 cos - x1 sin        halves:       the pair is (x[j], x[j + R / 2])     GPT-NeoX, Llama in transformers
    y1 = x1 cos + x0 sin        interleaved:  the pair is (x[2 j], x[2 j + 1])     the paper, Llama as it was released

q (B, H, S, D), k (B, H_kv, S, D), any strides. The first R elements of a head are turned, the rest is neither read nor
written. Backward is the same with the sine's sign turned: what it needs is the angles, and no activation is kept.

Bytes: 2 x element size for each element that is turned; tables of S R / 2 cosines and as many sines come from the L2
cache after their first read. 3 FLOP an element, 0.75 a byte in bf16: far left of any ridge, so the floor is a copy.

    angles    the frequencies, and the two forms in which a kernel gets the angles
    kernel    the kernel
    tuning    which block of positions and heads a program turns
    launch    tensors in, one launch
    public    plain torch, autograd, the operators, `rope` and `rope_`

Measured on an H200: benchmarks/notes/rope.md.
"""

from course_lib.kernels.rope.angles import Computed, Tables, rope_frequencies
from course_lib.kernels.rope.public import rope, rope_, rope_reference

__all__ = ["Computed", "Tables", "rope", "rope_", "rope_frequencies", "rope_reference"]
