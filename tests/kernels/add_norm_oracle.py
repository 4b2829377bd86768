"""What add_norm should give, in float64, and how far from it may be right."""

import torch

from course_lib.device import DEVICE

U = 2.0**-24
EPS = 1e-5
NAMES = ("y", "s", "dx", "dresidual", "dw", "db")
LIMIT = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(rows, N, dtype):
    """x, residual, weight, bias."""
    return [torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((rows, N), (rows, N), (N,), (N,))]


def seed_of(number):
    return torch.tensor([number], dtype=torch.int64, device=DEVICE)


def forward_oracle(x, residual, weight, bias, eps=EPS):
    """y, mean, rstd exactly, and how far a right y may be: each term of a row is off by a few units of the largest."""
    s = x.double() + residual.double()
    mean = s.mean(-1, keepdim=True)
    rstd = (s.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    y = (s - mean) * rstd * weight.double() + (0 if bias is None else bias.double())
    size = s.abs().amax(-1, keepdim=True) * rstd
    bound = U * (weight.double().abs() * (6 + size + (s.shape[-1] ** 0.5 + 8) * size) + 2 * y.abs())
    return s, mean, rstd, y, bound * (1 + size)


def backward_oracle(dy, ds, s, weight, mean, rstd):
    """d, dw, db in float64 from what backward is given."""
    x = (s.double() - mean.double()[:, None]) * rstd.double()[:, None]
    g = dy.double() * weight.double()
    d = (g - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True)) * rstd.double()[:, None]
    return d + (0 if ds is None else ds.double()), (dy.double() * x).sum(0), dy.double().sum(0)


def backward_is_right(d, dw, db, sum_x, *given):
    """db and sum_x may be None; `given` as for the oracle, whose gradient of s comes back."""
    want, want_w, want_b = backward_oracle(*given)
    near(d, want, 2e-6 + torch.finfo(d.dtype).eps / 2, "d")
    near(dw, want_w, 2e-6, "dw")
    if db is not None:
        near(db, want_b, 1e-6, "db")
    if sum_x is not None:
        near(sum_x, want.sum(0), 4e-6, "the sum of d")
    return want


def near(got, want, limit, name=""):
    """||got - want|| / ||want||."""
    assert got.shape == want.shape and not got.isnan().any(), name
    error, size = (got.double() - want.double()), want.double()
    assert error.norm() <= limit * size.norm() + 1e-30, f"{name} is off by {(error.norm() / size.norm()).item():.1e}"


def forward_terms(s):
    mean = s.double().mean(-1)
    return mean, (s.double().var(-1, correction=0) + EPS).rsqrt()


def gradients(f, given, gy, gs):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in given]
    y, s = f(*leaves)
    grads = torch.autograd.grad((y, s), [t for t in leaves if t is not None], (gy.to(y.dtype), gs.to(s.dtype)))
    return [y.detach(), s.detach(), *grads]
