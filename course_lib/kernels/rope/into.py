"""The rotation into tensors that the caller gives: what a speed is compared with where memory must be the caller's."""

from course_lib.kernels.rope.launch import write_rope

__all__ = ["rope_into"]


def rope_into(q, k, cos, sin, layout: str, q_out, k_out) -> None:
    """q, q_out (B, H, S, D), k, k_out (B, H_kv, S, D), any strides; cos, sin (>= S, R / 2) fp32 contiguous.

    Row s is at position s. Bytes: read q and k, write q_out and k_out.
    """
    write_rope(q_out, k_out, q, k, cos, sin, None, 0, False, layout == "interleaved", False)
