import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import TIER
from course_lib.kernels.attention import attention_reference
from course_lib.kernels.one_pass import _one_pass_kernel, backward_in_one_pass


def everything(random, n_q, n_k, D, dtype, causal, heads=2):
    """do, q, k, v, o, l, and the gradients in float64."""
    q, k, v, do = (random(2, heads, n, D, dtype=dtype) for n in (n_q, n_k, n_k, n_q))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    o, l = attention_reference(*leaves, causal)
    want = torch.autograd.grad(o, leaves, do.double())
    return (do, q, k, v, o.detach().to(dtype), l.detach().float()), want


def distance(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize(("n_q", "n_k", "causal"), [(33, 50, True), (50, 33, True), (16, 32, False), (5, 70, False)])
def test_atomic_additions_give_the_gradients(random, dtype, n_q, n_k, causal):
    given, want = everything(random, n_q, n_k, 32, dtype, causal)
    limit = 1e-5 if dtype == torch.float32 else 3e-3 if dtype == torch.float16 else 2e-2
    for got, exact in zip(backward_in_one_pass(*given, causal, 32**-0.5), want):
        assert distance(got, exact) < limit


@pytest.mark.skipif(TIER == "gpu", reason="there the racy kernel loses sums, which is the point of it")
def test_one_program_after_the_other_even_load_add_store_is_right(random):
    given, want = everything(random, 40, 70, 16, torch.float32, True)
    assert distance(backward_in_one_pass(*given, True, 0.25, add="racy")[0], want[0]) < 1e-5


@pytest.mark.gpu
def test_on_a_gpu_load_add_store_loses_sums(random):
    given, want = everything(random, 512, 2048, 64, torch.float16, False, heads=8)
    assert distance(backward_in_one_pass(*given, False, 0.125, add="racy")[0], want[0]) > 1e-2
    assert distance(backward_in_one_pass(*given, False, 0.125)[0], want[0]) < 3e-3


def test_none_leaves_dq_at_zero_and_makes_the_rest(random):
    given, want = everything(random, 20, 40, 16, torch.float32, False)
    dq, dk, dv = backward_in_one_pass(*given, False, 0.25, add="none")
    assert not dq.any() and distance(dk, want[1]) < 1e-5 and distance(dv, want[2]) < 1e-5


@pytest.mark.parametrize("add", ["atomic", "racy", "none"])
def test_it_compiles_for_an_h200(add):
    names = ("q_ptr", "k_ptr", "v_ptr", "do_ptr", "dk_ptr", "dv_ptr")
    signature = dict.fromkeys(names, "*bf16") | dict.fromkeys(("dq_ptr", "l_ptr", "delta_ptr"), "*fp32")
    signature |= {"n_q": "i32", "n_k": "i32", "scale": "fp32"}
    constants = {"ADD": add, "CAUSAL": True, "D": 64, "BLOCK_M": 64, "BLOCK_N": 64}
    made = compile_kernel(_one_pass_kernel, signature, constants, num_warps=4, num_stages=2)
    assert made.fits and made.instructions["wgmma"] > 0
    assert (made.instructions["atomic"] > 0) == (add == "atomic")


def test_what_it_does_not_take_is_refused(random):
    (do, q, k, v, o, l), _ = everything(random, 8, 8, 16, torch.float32, False)
    with pytest.raises(AssertionError, match="contiguous"):
        backward_in_one_pass(do.mT.contiguous().mT, q, k, v, o, l, False, 0.25)
    with pytest.raises(AssertionError):
        backward_in_one_pass(do, q, k[:, :1], v[:, :1], o, l, False, 0.25)
