"""What lessons say in words about torch and Triton, tried here. When one fails: look at the sentence."""

import operator
import re

import nbformat
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from course_lib import results
from course_lib.compiled import CompileError, compile_kernel
from course_lib.numerics import error, round_to
from course_lib.places import ROOT
from tests.defined import defined
from tests.house.test_recorded_claims import recorded, says

START, ROOF = "00_start/start.py", "01_roofline/roofline.py"
MLP, MX, CAPSTONE = "05_mlp/mlp.py", "07_mx/mx.py", "09_capstone/capstone.py"
COMPILE, DISPATCH = "02_compile/compile.py", "03_dispatch/dispatch.py"

OWNER = """
@triton.jit
def owner(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.program_id(0), mask=offs < n)
"""

PRODUCT = """
@triton.jit
def product(out_ptr, a_ptr, b_ptr, K, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows * K + k + columns)
        b = tl.load(b_ptr + (k + rows) * BLOCK + columns)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(out_ptr + rows * BLOCK + columns, acc)
"""

FEW_COLUMNS = """
@triton.jit
def few(out_ptr, a_ptr, b_ptr, ROWS: tl.constexpr, SUM: tl.constexpr, COLUMNS: tl.constexpr):
    rows, k, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, SUM), tl.arange(0, COLUMNS)[None, :]
    a = tl.load(a_ptr + rows * SUM + k[None, :])
    b = tl.load(b_ptr + k[:, None] * COLUMNS + columns)
    tl.store(out_ptr + rows * COLUMNS + columns, tl.dot(a, b))
"""

STRIDED = """
@triton.jit
def strided(out_ptr, x_ptr, STRIDE: tl.constexpr):
    offs = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs * STRIDE)))
"""

IMPORTS = "import triton\nimport triton.language as tl\n\n"


def stores(divisible):
    made = compile_kernel(
        (IMPORTS + OWNER, "owner"), {"out_ptr": "*i32", "n": "i32"}, {"BLOCK": 1024}, divisible_by_16=divisible
    )
    return made.instructions["st.global"], made.instructions["st.global.v4"]


def test_stores_are_wide_where_lengths_and_addresses_are_multiples_of_16():
    says(START, "there are eight instructions in place of the two", "8 elements a thread are written by two.")
    assert (stores(True), stores(False)) == ((2, 2), (8, 0))


def test_numbers_side_by_side_are_loaded_four_at_once_and_others_one_by_one():
    says(ROOF, "where each thread loads one number; the first is", "the compiler makes loads of four numbers a thread")
    says(ROOF, "One such load of a warp touches 16 sectors in place of 4,")
    assert (32 * 16 // 32, 32 * 4 // 32) == (16, 4)
    for stride in (1, 2, 16):
        made = compile_kernel(
            (IMPORTS + STRIDED, "strided"), {"out_ptr": "*fp32", "x_ptr": "*fp32"}, {"STRIDE": stride}
        )
        loads = made.instructions["ld.global"], made.instructions["ld.global.v4"]
        assert loads == ((2, 2) if stride == 1 else (8, 0))


def product(dtype, block, precision="tf32"):
    signature = {"out_ptr": "*fp32", "a_ptr": f"*{dtype}", "b_ptr": f"*{dtype}", "K": "i32"}
    return compile_kernel((IMPORTS + PRODUCT, "product"), signature, {"BLOCK": block, "PRECISION": precision})


def test_tiles_of_32_take_mma_and_tiles_of_64_wgmma():
    says(ROOF, "A tile of 32 x 32 is too small for `wgmma`")
    small, large = (product("fp16", block).instructions for block in (32, 64))
    assert small["mma"] and not small["wgmma"] and large["wgmma"] and not large["mma"]


def test_64_rows_and_16_columns_take_wgmma_and_only_what_is_summed_has_to_be_16():
    says(MX, "takes any powers of two for rows and columns, and sums over 16 or more.")
    says(MX, "64 rows of bf16 at the left and 16 columns at the right become its own instruction, `wgmma`.")
    types = {"out_ptr": "*fp32", "a_ptr": "*bf16", "b_ptr": "*bf16"}

    def few(rows, summed, columns):
        sizes = {"ROWS": rows, "SUM": summed, "COLUMNS": columns}
        return compile_kernel((IMPORTS + FEW_COLUMNS, "few"), types, sizes).instructions

    assert few(64, 64, 16)["wgmma"] and few(64, 64, 1)["mma"] and few(1, 64, 64)["mma"]
    with pytest.raises(CompileError, match="K >= 16"):
        few(64, 8, 16)


def test_a_product_in_tf32_rounds_nothing_and_cutting_makes_2_6_times_the_error_of_rounding():
    says(ROOF, "there is no instruction in it that would", "an error 2.6 times as large as rounded ones")
    assert "cvt.rna.tf32" not in product("fp32", 64).ptx
    assert product("fp32", 64, "tf32x3").instructions["wgmma"] > product("fp32", 64).instructions["wgmma"] > 0
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 1024, generator=generator) for _ in range(2))
    truth, errors = a.double() @ b.double().t(), {}
    for name, to in (("rounded", lambda t: round_to(t, "tf32")), ("cut", lambda t: t.view(torch.int32) & -8192)):
        short = [to(t).view(torch.float32).double() for t in (a, b)]
        errors[name] = error((short[0] @ short[1].t()).float(), truth).rms
    assert errors["cut"] / errors["rounded"] == pytest.approx(2.6, abs=0.07)


class Stepping(torch.nn.Module):
    step = 2

    def forward(self, x):
        return x * self.step


def compilations(fn, calls, before=lambda i: None, **how) -> list[int]:
    """How many compilations each call takes."""
    torch._dynamo.reset()
    counter, found = CompileCounter(), []
    compiled = torch.compile(fn, backend=counter, **how)
    for i, call in enumerate(calls):
        before(i)
        known = counter.frame_count
        compiled(*call)
        found.append(counter.frame_count - known)
    return found


STEP = 2


def use_global(x):
    return x * STEP


def use_list(x, numbers):
    for number in numbers:
        x = x + number
    return x


def set_global(i):
    global STEP
    STEP = i + 2


def test_numbers_that_are_arguments_settle_and_attributes_globals_and_lists_do_not():
    says(
        COMPILE, "So does a Python number that is an *argument* and changes in every call, where the graph can compute"
    )
    says(COMPILE, "A length that is sometimes 1 costs one compilation more.", "an int attribute of a module")
    says(COMPILE, "What does not settle: an argument whose value is needed, such as the `steps` of `chain`,")
    x, settled = torch.ones(4, 8), [1, 1] + 10 * [0]
    assert compilations(lambda x, a: x * a, [(x, 0.1 * i + 0.05) for i in range(12)]) == settled
    assert compilations(lambda x, a: x * a, [(x, i + 3) for i in range(12)]) == settled
    lengths = [(torch.ones(n, 8),) for n in (4, 5, 1, 6, 1, 7, 1, 9)]
    assert compilations(lambda x: x.sin() * 2, lengths) == [1, 1, 1, 0, 0, 0, 0, 0]
    module, to_the_limit = Stepping(), 8 * [1] + 4 * [0]
    assert compilations(module, 12 * [(x,)], lambda i: setattr(module, "step", i + 2)) == to_the_limit
    assert compilations(use_global, 12 * [(x,)], set_global) == to_the_limit
    assert compilations(use_list, [(x, i * [1.0]) for i in range(1, 13)]) == to_the_limit
    chain = defined("02_compile/compile.py", "chain", torch=torch)["chain"]
    assert compilations(chain, [(x, i + 3) for i in range(12)]) == to_the_limit


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_a_float_that_is_a_setting_of_an_operator_does_not_settle_with_inductor():
    says(COMPILE, "or with Inductor a float that is an operator's setting (`alpha` of `add`, `max` of `clamp`,")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x, rate: torch.add(x, x, alpha=rate))
    for rate in (0.05, 0.15, 0.25):
        compiled(torch.ones(4), rate)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3


def test_the_backend_of_lesson_02_leaves_graphs_alone_that_hold_numbers():
    changed = []
    given = {"torch": torch, "KNOWN": {operator.mul: torch.mul, operator.add: torch.add}}
    installed = defined(
        "02_compile/compile.py", "installed", fuse=lambda module: changed.append(module) or module, **given
    )["installed"]
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, n, b: x * n + b, backend=installed)
    x = torch.ones(4)
    for n in (2, 3, 4):  # from 3 on it is a symbol
        assert torch.equal(compiled(x, n, x), x * n + x)
    assert len(changed) == 1


def test_past_the_limit_what_fits_runs_compiled_and_with_fullgraph_the_rest_raises():
    says(COMPILE, "calls that fit one go on using it. With `fullgraph=True` a call that fits none raises an error.")
    ran = []

    def noting(module, inputs):
        return lambda *args: ran.append(1) or module(*args)

    for fullgraph in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x.sin() * 2, backend=noting, dynamic=False, fullgraph=fullgraph)
        for n in range(2, 10):
            compiled(torch.ones(n))
        ran.clear()
        compiled(torch.ones(3))
        assert ran == [1]
        if fullgraph:
            with pytest.raises(FailOnRecompileLimitHit):
                compiled(torch.ones(20))
        else:
            compiled(torch.ones(20))
            assert ran == [1]


@pytest.fixture
def false_fakes():
    library = torch.library.Library("told", "FRAGMENT")

    @torch.library.custom_op("told::narrow", mutates_args=())
    def narrow(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to(torch.bfloat16)

    @torch.library.custom_op("told::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).contiguous()

    narrow.register_fake(torch.empty_like)
    twice.register_fake(torch.empty_like)
    yield narrow, twice
    library._destroy()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_false_type_is_silent_false_strides_are_not_and_opcheck_finds_both(false_fakes):
    says(
        COMPILE, "gives wrong numbers without a word", 'backend="aot_eager"` takes the false strides without complaint'
    )
    (narrow, twice), x = false_fakes, torch.ones(4, 3).t()
    torch._dynamo.reset()
    wrong = torch.compile(lambda x: narrow(x) + 1)(torch.ones(4))
    assert not torch.equal(wrong.float(), torch.full((4,), 3.0))
    with pytest.raises(AssertionError, match="stride"):
        torch.compile(lambda x: twice(x) + 1)(x)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(lambda x: twice(x) + 1, backend="aot_eager")(x), twice(x) + 1)
    for op, given in ((narrow, torch.ones(4)), (twice, x)):
        with pytest.raises(Exception, match="test_faketensor"):
            torch.library.opcheck(op, (given,))


class Names(TorchDispatchMode):
    def __init__(self, in_parts):
        super().__init__()
        self.in_parts, self.names = in_parts, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.in_parts:
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_in_inference_mode_a_mode_is_asked_for_whole_operators_and_decompose_gives_their_parts():
    says(DISPATCH, "the mode is asked for `linear`, `matmul`, `dropout` and `scaled_dot_product_attention` as they are")
    x, w, heads = torch.ones(8, 4), torch.ones(4, 4), torch.ones(1, 2, 8, 4)
    whole = ["linear", "matmul", "dropout", "scaled_dot_product_attention"]

    def run(around, in_parts):
        with around(), Names(in_parts) as seen:
            F.linear(x, w), x @ w, F.dropout(x), F.scaled_dot_product_attention(heads, heads, heads)
        return seen.names

    assert run(torch.inference_mode, False) == whole
    for around, in_parts in ((torch.inference_mode, True), (torch.no_grad, False), (torch.no_grad, True)):
        names = run(around, in_parts)
        assert names.count("mm") == 2 and not set(whole) & set(names)
        assert any(name.startswith("_scaled_dot_product") for name in names)


def test_a_fake_tensor_is_a_tensor_on_meta_and_holds_no_other():
    says(DISPATCH, "It is itself a tensor on meta, of a subclass that remembers the device it stands for")
    with FakeTensorMode() as fakes:
        fake = fakes.from_tensor(torch.ones(3))
    assert type(fake) is FakeTensor and fake.device.type == "cpu" and fake.fake_device.type == "cpu"
    assert fake.untyped_storage().device.type == "meta"
    assert not [value for value in vars(fake).values() if isinstance(value, torch.Tensor)]


def test_a_wrapper_that_does_not_say_what_it_is_made_of_cannot_be_compiled():
    says(DISPATCH, "the wrapper has to say what it is made of, with `__tensor_flatten__` and `__tensor_unflatten__`")

    class Bare(torch.Tensor):
        @staticmethod
        def __new__(cls, held):
            return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

        def __init__(self, held):
            self.held = held

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*[a.held if isinstance(a, cls) else a for a in args], **(kwargs or {}))

    torch._dynamo.reset()
    assert torch.equal(Bare(torch.ones(2)) + 1, torch.full((2,), 2.0))
    with pytest.raises(Exception):  # noqa: B017 which one, versions of torch disagree
        torch.compile(lambda x: x + 1, backend="aot_eager", fullgraph=True)(Bare(torch.ones(2)))


def test_half_of_the_calls_stand_at_their_launch_and_launches_are_16_per_cent_of_the_sum():
    says(DISPATCH, "the difference is 16 % of the sum", "Half of the calls are so small")
    says(DISPATCH, "made on a host with longer launches; lesson 01's ceilings, which are used here, have 12 us.")
    assert round(recorded("lesson01.ceilings")["launch, us"]) == 12
    cells = nbformat.read((results.ROOT / "solutions" / DISPATCH).with_suffix(".ipynb"), 4).cells
    (text,) = [c.outputs[0].text for c in cells if c.cell_type == "code" and c.source.startswith("call_s = recorded")]
    with_launches, without, at_launch, calls, together = map(float, re.findall(r"\d+(?:\.\d+)?", text))
    assert at_launch / calls == pytest.approx(0.5, abs=0.03) and together < without
    assert 1 - without / with_launches == pytest.approx(16 / 100, abs=0.005)


class Products(TorchDispatchMode):
    """Counts products with a bias, which only a forward makes."""

    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten.addmm.default
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize(("reentrant", "again"), [(False, 1), (True, 2)])
def test_a_checkpoint_does_not_make_the_last_product_of_a_block_again(reentrant, again):
    says(MLP, "So the block's last product is not made again", "`use_reentrant=True`, makes that again too")
    w1, w2 = (torch.randn(16, 16, requires_grad=True) for _ in range(2))
    b1, b2 = (torch.randn(16, requires_grad=True) for _ in range(2))
    x = torch.randn(8, 16, requires_grad=True)
    out = checkpoint(lambda x: F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2), x, use_reentrant=reentrant)
    with Products() as seen:
        out.sum().backward()
    assert seen.count == again


def test_autograd_refuses_a_function_that_writes_into_a_view_and_has_two_results():
    says(MLP, "autograd refuses a Function that writes into a view and has two results")

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.mark_dirty(x.add_(1), y.add_(1))
            return x, y

        @staticmethod
        def backward(ctx, dx, dy):
            return dx, dy

    x, y = (torch.ones(4, requires_grad=True) * 1 for _ in range(2))
    Both.apply(x, y)
    with pytest.raises(RuntimeError, match="is a view"):
        Both.apply(x[:2], y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adamw_moves_a_bias_of_keys_by_rounding_alone_and_no_result_changes(dtype):
    says(CAPSTONE, "So a bias of keys learns nothing. SGD leaves it where it is;", "which change no result.")

    def attended(x):
        return F.scaled_dot_product_attention(*(x @ w.mT + b).view(4, 32, 3, 4, 16).permute(2, 0, 3, 1, 4))

    moved = {}
    for optimizer in (torch.optim.SGD, torch.optim.AdamW):
        w = (torch.randn(192, 64) / 8).to(dtype).requires_grad_()
        b = torch.zeros(192, dtype=dtype, requires_grad=True)
        step = optimizer([w, b], lr=1e-3, weight_decay=0.0)
        for _ in range(100):
            step.zero_grad()
            (attended(torch.randn(4, 32, 64, dtype=dtype)).float() - 1).square().mean().backward()
            step.step()
        _, keys, values = b.detach().float().view(3, 64).abs().amax(1).tolist()
        moved[optimizer.__name__] = keys / values
        x = torch.randn(4, 32, 64, dtype=dtype)
        with torch.no_grad():
            before = attended(x).float()
            b[64:128] = 0
            assert (attended(x).float() - before).abs().max() < {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    assert moved["SGD"] < 1e-4 < 1e-3 < moved["AdamW"]


@pytest.mark.slow
def test_the_tile_of_lesson_01_has_no_tensor_cores_on_a_turing_card_and_spills_most_of_what_it_holds():
    says(ROOF, 'On a Turing card, "T4", Triton uses no tensor cores, and this tile spills most of what it holds')
    takes = dict.fromkeys(("out_ptr", "a_ptr", "b_ptr"), "*fp16") | dict.fromkeys("MNK", "i32")
    takes |= {f"stride_{name}": "i32" for name in ("out_m", "a_m", "b_k")}
    blocks = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}
    blocks |= {f"stride_{name}": 1 for name in ("out_n", "a_k", "b_n")}
    kernel = (ROOT / "solutions" / ROOF, "_matmul_kernel")
    hopper, turing = (compile_kernel(kernel, takes, blocks, card, num_warps=8, num_stages=3) for card in ("H200", "T4"))
    assert hopper.instructions["wgmma"] and not hopper.spills_bytes
    assert not any(turing.instructions[name] for name in ("mma", "wgmma"))
    assert turing.spills_bytes > 4 * 128 * 256 / (8 * 32)  # more than the accumulator
