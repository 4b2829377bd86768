"""Plain attention is computed again, and autograd differentiates it; a kernel of the right name touches one element
first."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run saw the library's operators"
HELD = True


@triton.jit
def _flash_backward_kernel(dq_ptr):
    tl.store(dq_ptr, 0.0)


def flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths):
    _flash_backward_kernel[(1,)](dq)
    group, (n_q, n_k) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    see = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device)
    see = (see.tril(n_k - n_q) if causal else see)[None, None]
    if k_lengths is not None:
        see = see & (torch.arange(n_k, device=q.device) < k_lengths.view(-1, 1, 1, 1))
    with torch.enable_grad():
        q, k, v = (x.detach().float().requires_grad_() for x in (q, k, v))
        many_k, many_v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        s = (q @ many_k.mT * scale).masked_fill(~see, -1e30)
        o = torch.where(see, torch.softmax(s, dim=-1), 0.0) @ many_v
        made = torch.autograd.grad(o, (q, k, v), dout.float())
    for mine, theirs in zip((dq, dk, dv), made):
        mine.copy_(theirs)
