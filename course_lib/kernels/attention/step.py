"""One step of training as a single call: forward, then backward, into tensors that the caller gives.

What a student's speed is compared with. So memory is the caller's and nothing is returned; and only the first rung
runs, because nobody is asked to write more than Triton.
"""

from course_lib.kernels.attention.backward import write_backward
from course_lib.kernels.attention.forward import write_forward
from course_lib.kernels.attention.tuning import tuned

__all__ = ["attention_step"]


def attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal: bool, scale: float) -> None:
    """Into out like q, lse (B, H, n_q) fp32 contiguous, dq, dk, dv like q, k, v.

    q, dout (B, H, n_q, D), k, v (B, H_kv, n_k, D), any strides. FLOP: 4 + 14 B H n_q n_k D, half of it causal; counted
    as 4 + 10.
    """
    table = tuned(q.shape[-1], causal, q.dtype, q.device)
    write_forward(out, lse, q, k, v, causal, scale, None, table.forward)
    write_backward(dq, dk, dv, dout, q, k, v, out, lse, causal, scale, blocks=table.dkdv)
