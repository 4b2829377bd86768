import pytest
import torch
from torch import nn

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels.mx import (
    MXLinear,
    Quantized,
    dequantize_reference,
    mx_linear,
    mx_linear_operator,
    quantize,
    swap_linears,
    tuning,
)
from course_lib.kernels.mx.convert import dequantize
from course_lib.kernels.mx.gemm import gemm_kernel, write_gemm
from course_lib.kernels.mx.gemv import gemv_kernel, write_gemv
from course_lib.kernels.mx.product import product, route_of
from course_lib.kernels.mx.tuning import Matrix, Routes, Vector, matrix_blocks, routes_for, vector_blocks

U = 2.0**-24


@pytest.fixture(autouse=True)
def empty_tensors_hold_nan(monkeypatch):
    original = torch.empty

    def poisoned(*args, **kwargs):
        x = original(*args, **kwargs)
        return x.fill_(float("nan") if x.is_floating_point() else 77)

    monkeypatch.setattr(torch, "empty", poisoned)


def product_bound(x, w, bias):
    """(exact, how far a right product may be): sums of K products in fp32, weights exact."""
    exact_w = dequantize_reference(w, torch.float32).double()
    sizes = x.double().abs() @ exact_w.abs().T
    bias = 0 if bias is None else bias.double()
    return x.double() @ exact_w.T + bias, 2 * (x.shape[1] + 8) * U * (
        sizes + (bias.abs() if torch.is_tensor(bias) else 0)
    )


@pytest.fixture
def weights(random):
    return lambda N, K, group=32: quantize(
        random(N, K, dtype=torch.float32) * random(N, 1, dtype=torch.float32).exp(), group
    )


# The interpreter's products of bf16 are none: there only the route without tensor cores takes it.
PRODUCTS = [("vector", torch.float32), ("vector", torch.bfloat16), ("matrix", torch.float32)]
PRODUCTS += [("matrix", torch.bfloat16)] if TIER == "gpu" else []


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("route", "type_of_x"), PRODUCTS, ids=str)
@pytest.mark.parametrize(
    ("rows", "N", "K", "group"), [(1, 1, 1, 32), (3, 5, 70, 32), (2, 37, 200, 16), (5, 18, 96, 1), (7, 33, 130, 128)]
)
def test_products_are_right_for_any_shape(rows, N, K, group, route, type_of_x, biased, random, weights, assert_within):
    x, w = random(rows, K, dtype=type_of_x), weights(N, K, group)
    bias = random(N, dtype=type_of_x) if biased else None
    got = product(x, w, bias, route)
    assert got.dtype == type_of_x
    assert_within(got, *product_bound(x, w, bias))


def test_many_rows_take_several_blocks(random, weights, assert_within):
    x, w = random(35, 70, dtype=torch.float32), weights(20, 70)
    for route in ("matrix", "dequantize", None):
        assert_within(product(x, w, None, route), *product_bound(x, w, None))


@pytest.mark.parametrize("split", [1, 2, 5, 50])
def test_the_sum_along_k_may_be_cut_into_any_number_of_parts(split, random, weights, assert_within):
    x, w, bias = random(3, 230, dtype=torch.float32), weights(20, 230), random(20, dtype=torch.float32)
    out = torch.full((3, 20), float("nan"), device=DEVICE)
    write_gemm(out, x, w, bias, Matrix(16, 16, 32, 4, 2, split))
    assert_within(out, *product_bound(x, w, bias))


def test_weights_and_rows_may_lie_apart_in_memory(random, weights, assert_within):
    w = weights(9, 70)
    apart = torch.full((9, 80), 55, dtype=torch.int8, device=DEVICE)
    apart[:, :70] = w.mantissas
    x = random(3, 90, dtype=torch.float32)[:, :70]
    for route in ("vector", "matrix"):
        got = product(x, Quantized(apart[:, :70], w.exponents, 32), None, route)
        assert_within(got, *product_bound(x, w, None))
    assert_within(product(random(70, 3, dtype=torch.float32).T * 0 + x, w), *product_bound(x, w, None))


def test_results_go_where_they_are_told_to(random, weights, assert_within):
    x, w, bias = random(5, 70, dtype=torch.float32), weights(20, 70), random(20, dtype=torch.float32)
    buffer = torch.full((5, 30), 5.0, device=DEVICE)
    for route in ("vector", "matrix", "dequantize"):
        out = buffer[:, 3:23].fill_(float("nan"))
        assert product(x, w, bias, route, out) is out
        assert_within(out, *product_bound(x, w, bias))
    assert (buffer[:, :3] == 5).all() and (buffer[:, 23:] == 5).all()


def test_a_group_of_nan_makes_nan_of_its_rows_and_no_others(random, weights):
    x, w = random(3, 70, dtype=torch.float32), weights(9, 70)
    w.exponents[4, 1] = 255
    for route in ("vector", "matrix"):
        bad = product(x, w, None, route).isnan()
        assert bad[:, 4].all() and bad.sum() == 3


def test_a_longer_group_than_a_block_takes_the_place_of_rows(random, weights, assert_within):
    x, w = random(2, 500, dtype=torch.float32), weights(6, 500, 512)
    out = torch.full((2, 6), float("nan"), device=DEVICE)
    write_gemv(out, x, w, None, Vector(4, 128, 4))
    assert_within(out, *product_bound(x, w, None))
    assert_within(product(x, w, None, "matrix"), *product_bound(x, w, None))


def test_each_route_begins_where_it_was_found_to():
    found = Routes(tensor_cores=5, dequantize=256)
    seen = [route_of(rows, found) for rows in (1, 4, 5, 255, 256, 9999)]
    assert seen == ["vector", "vector", "matrix", "matrix", "dequantize", "dequantize"]
    assert route_of(9, Routes(tensor_cores=9, dequantize=4097)) == "matrix", "rows are unrolled: eight at most"


def test_a_shape_that_was_measured_has_routes_of_its_own_and_others_the_default():
    assert all(routes_for(*shape) == found for shape, found in tuning.ROUTES.items())
    assert (4096, 4096) in tuning.ROUTES and routes_for(4096, 4097) == tuning.DEFAULT


def test_gradients_of_x_and_bias_are_those_of_the_rounded_weights(random, weights):
    w = weights(9, 70)
    x, bias = random(2, 3, 70, dtype=torch.float32).requires_grad_(), random(9, dtype=torch.float32).requires_grad_()
    dy = random(2, 3, 9, dtype=torch.float32)
    got = torch.autograd.grad(mx_linear(x, w, bias), (x, bias), dy)
    want = torch.autograd.grad(nn.functional.linear(x, dequantize_reference(w, torch.float32), bias), (x, bias), dy)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("biased", [False, True])
def test_the_operator_passes_opcheck(biased, random, weights):
    w, x = weights(9, 70), random(2, 3, 70, dtype=torch.float32).requires_grad_()
    bias = random(9, dtype=torch.float32).requires_grad_() if biased else None
    torch.library.opcheck(mx_linear_operator, (x, w.mantissas, w.exponents, bias, 32))


def model_of(device=DEVICE):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.gate = nn.Linear(64, 96), nn.Linear(96, 64, bias=False), nn.Linear(64, 64)

        def forward(self, x):
            return x + self.down(self.up(x).relu()) * self.gate(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 64)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.blocks[1].up = self.blocks[0].up  # one layer in two places, and one block in two
            self.blocks.append(self.blocks[0])
            self.attention = nn.MultiheadAttention(64, 2)  # its out_proj is a subclass of nn.Linear
            self.norm, self.lm_head = nn.LayerNorm(64), nn.Linear(64, 11, bias=False)

        def forward(self, x):
            x = self.embedding(x)
            for block in self.blocks:
                x = block(x)
            return self.lm_head(self.norm(self.attention(x, x, x)[0]))

    return Model().to(device)


def test_linears_are_swapped_by_name_and_the_output_stays_near():
    torch.manual_seed(1)
    model, tokens = model_of(), torch.arange(10, device=DEVICE).view(2, 5)
    before = model(tokens)
    swapped = swap_linears(model, skip=("lm_head", "*.gate"))
    assert swapped == [f"blocks.{i}.{name}" for i in range(2) for name in ("up", "down")]
    assert model.blocks[0].up is model.blocks[1].up is model.blocks[2].up and isinstance(model.blocks[0].up, MXLinear)
    assert type(model.blocks[0].gate) is nn.Linear and type(model.lm_head) is nn.Linear
    after = model(tokens)
    difference = ((after - before).norm() / before.norm()).item()
    assert 1e-4 < difference < 0.02, "rounded to 7 bits, and no more"


def test_a_tied_weight_stays():
    model = model_of()
    model.lm_head.weight = model.embedding.weight
    assert "lm_head" not in swap_linears(model) and type(model.lm_head) is nn.Linear


def test_a_swapped_layer_takes_0_516_of_the_bytes():
    layer = nn.Linear(4096, 64, bias=False, dtype=torch.bfloat16, device=DEVICE)
    new = MXLinear.from_linear(layer)
    held = sum(x.numel() * x.element_size() for x in (*new.parameters(), *new.buffers()))
    assert held == new.quantized.nbytes == layer.weight.numel() * 2 * 0.515625


def test_a_state_dict_goes_round():
    tokens = torch.arange(10, device=DEVICE).view(2, 5)
    first, second = model_of(), model_of()
    for model in (first, second):
        swap_linears(model, skip=("lm_head",))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(tokens), second(tokens))
    other = model_of()
    swap_linears(other, skip=("lm_head",), group=16)
    with pytest.raises(RuntimeError, match="exponents"):
        other.load_state_dict(first.state_dict())
    empty = MXLinear(96, 64, bias=False, device=DEVICE)
    empty.load_state_dict(first.blocks[0].down.state_dict())
    assert torch.equal(empty.weight, first.blocks[0].down.weight)


def test_a_change_of_the_models_type_leaves_the_format_alone():
    layer = MXLinear.from_linear(nn.Linear(64, 32, device=DEVICE)).to(torch.bfloat16)
    assert (layer.mantissas.dtype, layer.exponents.dtype, layer.bias.dtype) == (torch.int8, torch.uint8, torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16 and not layer.mantissas.requires_grad
    assert layer(torch.ones(1, 64, device=DEVICE, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.parametrize("records", [False, True])
def test_compile_takes_a_swapped_model_whole(records):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(64, 40), nn.Linear(40, 7)

        def forward(self, x):
            return self.second(self.first(x).relu())

    model = Small().to(DEVICE)
    swap_linears(model)
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    x, results = torch.randn(3, 64, device=DEVICE, requires_grad=records), []
    for f in (model, compiled):
        with torch.set_grad_enabled(records):
            out = f(x)
        results.append((out.detach(), *(torch.autograd.grad(out.sum(), x) if records else ())))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("route", ["vector", "matrix", "dequantize"])
def test_fp16_is_multiplied_in_fp32_since_weights_may_be_larger_than_it_holds(route, random):
    w = quantize(random(9, 70, dtype=torch.float32) * 2.0**20)
    x, bias = (random(3, 70, dtype=torch.float32) * 2.0**-16).half(), random(9, dtype=torch.float16)
    got = product(x, w, bias, route)
    want = x.double() @ dequantize(w, torch.float32).double().T + bias.double()
    assert got.dtype == torch.float16 and want.abs().max() < 60000
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3 * float(want.abs().max()))


def test_the_gradient_of_fp16_is_made_in_fp32(random):
    w = quantize(random(9, 70, dtype=torch.float32) * 2.0**17)
    x = (random(3, 70, dtype=torch.float32) * 2.0**-16).half().requires_grad_()
    dy = (random(3, 9, dtype=torch.float32) * 2.0**-8).half()
    mx_linear(x, w).backward(dy)
    want = dy.double() @ dequantize(w, torch.float32).double()
    torch.testing.assert_close(x.grad.double(), want, rtol=2e-3, atol=2e-3 * float(want.abs().max()))


def test_what_products_cannot_do_is_refused(weights):
    w, x = weights(9, 70), torch.zeros(3, 70, device=DEVICE)
    with pytest.raises(AssertionError, match="one of"):
        mx_linear(x.double(), w)
    with pytest.raises(AssertionError, match="end in 70"):
        mx_linear(x[:, :64], w)
    with pytest.raises(AssertionError, match="9 outputs"):
        mx_linear(x, w, torch.zeros(8, device=DEVICE))


def test_no_rows_give_no_rows(weights):
    assert mx_linear(torch.zeros(2, 0, 70, device=DEVICE), weights(9, 70)).shape == (2, 0, 9)
    nothing, bias = quantize(torch.zeros(9, 0, device=DEVICE)), torch.ones(9, device=DEVICE)
    assert (mx_linear(torch.zeros(2, 0, device=DEVICE), nothing, bias) == 1).all(), "and no columns zeros"


TYPE = {"m_ptr": "*i8", "e_ptr": "*u8", "x_ptr": "*bf16", "out_ptr": "*bf16", "parts_ptr": "*fp32"}


def compiled(kernel, fixed, arch=90, num_warps=4, num_stages=3):
    """What the compiler makes of a kernel for aligned bf16 tensors without a bias."""
    fixed = fixed | ({"bias_ptr": None} if "bias_ptr" in kernel.arg_names else {})
    signature = {name: TYPE.get(name, "i32") for name in kernel.arg_names if name not in fixed}
    return compile_kernel(kernel, signature, fixed, arch=arch, num_warps=num_warps, num_stages=num_stages)


def vector(rows, blocks, group=32, **options):
    fixed = {"ROWS": rows, "ROWS_PADDED": 1 << (rows - 1).bit_length(), "GROUP_SIZE": group, "EVEN": True}
    fixed |= {"BLOCK_N": blocks.n, "BLOCK_G": blocks.k // group}
    return compiled(gemv_kernel, fixed, num_warps=blocks.warps, **options)


def matrix(blocks, group=32, **options):
    fixed = {"GROUP_SIZE": group, "EVEN": True, "BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "BLOCK_K": blocks.k}
    return compiled(
        gemm_kernel, fixed | {"PRECISION": "tf32"}, num_warps=blocks.warps, num_stages=blocks.stages, **options
    )


@pytest.mark.parametrize("arch", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize(("rows", "N"), [(1, 14336), (1, 4096), (2, 4096), (8, 4096)])
def test_products_of_few_rows_compile_without_spills_to_loads_of_16_bytes(rows, N, arch, access_widths):
    made = vector(rows, vector_blocks(rows, N, torch.device("cuda")), arch=arch)
    assert made.fits and made.spills_bytes == 0, str(made)
    assert 16 in access_widths(made)["ld"] and not made.instructions["wgmma"] + made.instructions["mma"], str(made)


@pytest.mark.parametrize("most", tuning.MATRIX)
def test_products_of_more_rows_compile_to_tensor_cores_and_fit(most):
    made = matrix(tuning.MATRIX[most][0])
    assert made.fits and made.spills_bytes == 0, str(made)
    assert made.instructions["wgmma"] and made.instructions["cp.async"] and not made.instructions["atomic"], str(made)


@pytest.mark.usefixtures("an_h200")
def test_blocks_fill_the_device_by_cutting_k():
    cuda = torch.device("cuda")
    assert matrix_blocks(16, 14336, 4096, cuda, 132).split == 2
    assert matrix_blocks(16, 4096, 4096, cuda, 132).split == 8
    assert matrix_blocks(256, 14336, 4096, cuda, 132).split == 1
    assert matrix_blocks(16, 64, 512, cuda, 132).split == 1, "four blocks along K a part, at least"
    assert [matrix_blocks(rows, 4096, 4096, cuda, 132).m for rows in (1, 17, 64, 65, 5000)] == [16, 32, 64, 128, 128]


@pytest.mark.gpu
@pytest.mark.parametrize(("N", "K"), [(4096, 4096), (1024, 14336), (1000, 4100), (513, 2049)])
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 31, 64, 128, 200])
def test_the_blocks_of_a_gpu_are_right(rows, N, K, random, weights, assert_within):
    for dtype in (torch.bfloat16, torch.float32):
        x, w, bias = random(rows, K, dtype=dtype), weights(N, K), random(N, dtype=dtype)
        for route in ("vector", "matrix")[rows > 8 :]:
            assert_within(product(x, w, bias, route), *product_bound(x, w, bias))


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 16, 64, 128, 1024])
def test_other_groups_are_right_on_a_gpu(group, random, weights, assert_within):
    x, w = random(4, 2048, dtype=torch.bfloat16), weights(300, 2048, group)
    for route in ("vector", "matrix"):
        assert_within(product(x, w, None, route), *product_bound(x, w, None))


@pytest.mark.gpu
def test_the_same_bits_come_on_every_run(random, weights):
    x, w = random(16, 4096, dtype=torch.bfloat16), weights(1024, 4096)
    for route in ("vector", "matrix"):
        given = x if route == "matrix" else x[:2]
        assert all(torch.equal(product(given, w, None, route), product(given, w, None, route)) for _ in range(3))
