"""What the clock times: reference kernels that take the arguments of an exercise's entry point.

A student's speed is compared with theirs. Memory is the caller's, and nothing is returned. Only plain Triton runs here,
though hand-scheduled kernels are faster in places: a student's kernel is judged by what Triton reaches.
"""

from course_lib.kernels.attention.backward import write_backward
from course_lib.kernels.attention.forward import write_forward
from course_lib.kernels.attention.tuning import tuned
from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.product import taught_matrix, taught_vector
from course_lib.kernels.mx.tuning import DEFAULT
from course_lib.kernels.rope import write_rope

__all__ = ["attention_step", "gemv_into", "rope_into"]


def attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal: bool, scale: float) -> None:
    """One step of training: forward, then backward, into out like q, lse (B, H, n_q) fp32 contiguous, dq, dk, dv.

    q, dout (B, H, n_q, D), k, v (B, H_kv, n_k, D), any strides. FLOP: 4 + 14 B H n_q n_k D, half of it causal; counted
    as 4 + 10.
    """
    table = tuned(q.shape[-1], causal, q.dtype, q.device)
    write_forward(out, lse, q, k, v, causal, scale, None, table.forward)
    write_backward(dq, dk, dv, dout, q, k, v, out, lse, causal, scale, blocks=table.dkdv)


def rope_into(q, k, cos, sin, layout: str, q_out, k_out) -> None:
    """q, q_out (B, H, S, D), k, k_out (B, H_kv, S, D), any strides; cos, sin (>= S, R / 2) fp32 contiguous.

    Row s is at position s. Bytes: read q and k, write q_out and k_out.
    """
    write_rope(q_out, k_out, q, k, cos, sin, None, 0, False, layout == "interleaved", False)


def gemv_into(x, mantissas, exponents, group: int, out) -> None:
    """x (M, K), mantissas (N, K) int8, exponents (N, ceil(K / group)) uint8, out (M, N) in x's type; M is 1 to 16."""
    write = taught_vector if x.shape[0] < DEFAULT.tensor_cores else taught_matrix
    write(out, x, Quantized(mantissas, exponents, group), None)
