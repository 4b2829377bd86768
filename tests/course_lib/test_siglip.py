"""The three towers: one result and one state dict, padding that reaches nothing, one graph, and what each keeps.

Without a GPU `ours` runs in Triton's interpreter, in fp32; so sizes are tiny. The truth is the naive tower in fp64.
"""

import json
import struct
import subprocess
import sys
from functools import partial

import pytest
import torch

from course_lib import memory
from course_lib.device import DEVICE, TIER
from course_lib.kernels.mlp import KEEP
from course_lib.models import siglip, vision
from course_lib.models.siglip import naive, ours, strong, training, weights
from course_lib.models.siglip.frame import named_gradients
from course_lib.models.vision import Sizes

# Nothing is a multiple of anything: 7 patches of 5 numbers, a hidden layer of 31, three heads of 24.
ODD = Sizes(patch=5, patches=7, width=72, mlp=31, heads=3, layers=2)
SMALL = Sizes(patch=3, patches=5, width=32, mlp=40, heads=2, layers=2)
LENGTHS = (7, 1, 3, 6)
AGAIN = partial(ours.Tower, norms="again")
TOWERS = {"strong": strong.Tower, "ours": ours.Tower, "ours, norms again": AGAIN}
SETTINGS = [(keep, norms) for keep in KEEP for norms in ours.NORMS]
# Relative errors of a right answer. Two layers in fp32, each some hundred roundings of 6e-8.
LIMIT = {torch.float64: 1e-13, torch.float32: 5e-6}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def images(sizes, lengths, dtype=torch.float32):
    """Patches, lengths, and the gradient of the result; padding is noise."""
    shapes = (len(lengths), sizes.patches, sizes.patch), (len(lengths), sizes.width)
    patches, dy = (torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes)
    return patches, torch.tensor(lengths, device=DEVICE), dy


def made(kind, like, dtype=torch.float32, **options):
    """A tower of this kind with the weights of another."""
    tower = kind(like.sizes, **options).to(DEVICE, dtype)
    tower.load_state_dict(like.state_dict())
    return tower


def results(tower, patches, lengths, dy, call=None):
    """The result and, by name, every gradient; of `call` where that stands for the tower."""
    dtype = next(tower.parameters()).dtype
    for p in tower.parameters():
        p.grad = None
    y = (tower if call is None else call)(patches.to(dtype), lengths)
    y.backward(dy.to(dtype))
    return {"y": y.detach(), **named_gradients(tower)}


def check(got, want, limit):
    """Every tensor by itself. What is 0 on paper, as the gradient of the bias of k, is held against the largest."""
    assert got.keys() == want.keys()
    largest = max(t.abs().max() for name, t in want.items() if name != "y")
    for name, b in want.items():
        a = got[name].to(b.dtype)
        size = b.norm() if b.abs().max() > 1e-6 * largest else largest
        assert a.shape == b.shape and ((a - b).norm() / size).item() < limit, name


@pytest.mark.parametrize(
    "lengths", [LENGTHS, *(pytest.param(n, marks=pytest.mark.slow) for n in ((7, 7), (1, 1, 1))), (2,)], ids=str
)
@pytest.mark.parametrize("name", TOWERS)
def test_results_and_all_gradients_are_those_of_the_naive_tower(name, lengths):
    truth = naive.Tower(ODD).to(DEVICE, torch.float64)
    given, dtype = images(ODD, lengths), torch.float64 if name == "strong" else torch.float32
    check(results(made(TOWERS[name], truth, dtype), *given), results(truth, *given), LIMIT[dtype])


@pytest.mark.parametrize(
    ("keep", "norms"),
    [one if n % 3 == 0 else pytest.param(*one, marks=pytest.mark.slow) for n, one in enumerate(SETTINGS)],
)
def test_what_is_kept_changes_no_result(keep, norms):
    truth, given = naive.Tower(SMALL).to(DEVICE, torch.float64), images(SMALL, (5, 2))
    check(
        results(made(ours.Tower, truth, keep=keep, norms=norms), *given), results(truth, *given), LIMIT[torch.float32]
    )


def test_the_naive_tower_is_the_vision_tower_of_lesson_03():
    plain = vision.VisionTower(ODD).double()
    patches, lengths, _ = images(ODD, LENGTHS, torch.float64)
    real = torch.arange(7) < lengths.cpu()[:, None]
    got = made(naive.Tower, plain, torch.float64)(patches, lengths).cpu()
    torch.testing.assert_close(got, plain(patches.cpu(), real), rtol=1e-6, atol=1e-6)  # it divides in fp32


@pytest.mark.parametrize("name", ["naive", "strong"] + ["ours"] * (TIER == "gpu"))
def test_bf16_is_as_far_off_as_its_roundings(name):
    truth = naive.Tower(SMALL).to(DEVICE, torch.float64)
    given = images(SMALL, (5, 2, 4))
    tower = made({"naive": naive.Tower, **TOWERS}[name], truth, torch.bfloat16)
    got, want = (results(one, *given)["y"] for one in (tower, truth))
    assert got.dtype == torch.bfloat16 and 1e-4 < ((got - want).norm() / want.norm()).item() < 2e-2


@pytest.mark.parametrize("kind", [naive.Tower, *TOWERS.values()], ids=["naive", *TOWERS])
def test_nan_in_padding_reaches_no_result_and_no_gradient(kind):
    tower, (patches, lengths, dy) = kind(SMALL).to(DEVICE), images(SMALL, (5, 1, 3))
    before = results(tower, patches, lengths, dy)
    padding = torch.arange(SMALL.patches, device=DEVICE) >= lengths[:, None]
    patches[padding] = float("nan")
    after = results(tower, patches, lengths, dy)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_real_patch_is_seen_by_its_own_image_alone():
    tower, (patches, lengths, _) = ours.Tower(SMALL).to(DEVICE), images(SMALL, (5, 1, 3))
    with torch.no_grad():
        before = tower(patches, lengths)
        patches[2, 2] += 1  # the last real one of the third image
        changed = (tower(patches, lengths) != before).any(1)
    assert changed.tolist() == [False, False, True]


def test_every_state_dict_loads_everywhere_and_comes_back_the_same():
    state = naive.Tower(ODD).state_dict()
    for kind in (strong.Tower, ours.Tower, AGAIN, naive.Tower):
        tower = kind(ODD)
        assert str(tower.load_state_dict(state)) == "<All keys matched successfully>"
        again = tower.state_dict()
        assert again.keys() == state.keys() and all(torch.equal(again[name], state[name]) for name in state)
        state = again
    del state["blocks.1.attention.k.bias"]
    with pytest.raises(RuntimeError, match=r"Missing.*blocks.1.attention.qkv.bias"):
        ours.Tower(ODD).load_state_dict(state)


@pytest.mark.parametrize("kind", [ours.Tower, AGAIN])
def test_without_gradients_memory_is_used_again_and_results_stay(kind):
    tower, (patches, lengths, _) = kind(SMALL).to(DEVICE), images(SMALL, (5, 2))
    want = tower(patches, lengths)
    with torch.no_grad():
        assert torch.equal(tower(patches, lengths), want) and torch.equal(tower(patches, lengths), want)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # and by its compiler itself
@pytest.mark.parametrize("name", [n if n == "strong" else pytest.param(n, marks=pytest.mark.slow) for n in TOWERS])
def test_one_graph_for_every_length_and_batch(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    tower, graphs = TOWERS[name](SMALL).to(DEVICE), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(tower, backend=graphs, fullgraph=True)
    for lengths in ((5, 2, 4), (5, 5), (1, 2, 3, 4, 5)):
        patches, lengths, dy = images(SMALL, lengths)
        siglip.any_batch(patches, lengths)
        got = results(tower, patches, lengths, dy, compiled)
        check(got, results(tower, patches, lengths, dy), LIMIT[torch.float32])
    assert graphs.frame_count == 1


def kept_by(tower, patches, lengths):
    """Bytes that autograd holds between forward and backward, each storage once, without the weights."""
    own = {p.untyped_storage().data_ptr() for p in tower.parameters()}
    held = {}

    def pack(t):
        held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = tower(patches, lengths)
    del y
    return sum(size for where, size in held.items() if where not in own)


def test_ours_keeps_what_is_counted_and_less_than_strong_and_naive():
    sizes = Sizes(patch=5, patches=8, width=32, mlp=120, heads=2, layers=2)  # 3.75 widths, as in So400m
    patches, lengths, _ = images(sizes, (8, 3))
    held = {one: kept_by(ours.Tower(sizes, *one).to(DEVICE), patches, lengths) for one in SETTINGS}
    assert held == {one: ours.bytes_kept(sizes, 2, *one, element_size=4) for one in SETTINGS}
    most, plain = (kept_by(kind(sizes).to(DEVICE), patches, lengths) for kind in (strong.Tower, naive.Tower))
    assert held["pre-activation", "kept"] < 0.85 * most and held["pre-activation", "again"] < 0.75 * most < plain
    assert held["input", "kept"] < 0.65 * most and held["input", "again"] < 0.55 * most


@pytest.mark.parametrize("norms", [ours.NORMS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in ours.NORMS[1:])])
def test_of_biases_only_the_first_and_those_of_q_and_v_cost_a_pass_over_rows(norms):
    """Where a linear layer would sum the rows of a gradient, add_norm does, which has them in registers."""
    sizes = Sizes(patch=5, patches=8, width=32, mlp=40, heads=2, layers=2)
    tower, (patches, lengths, dy) = ours.Tower(sizes, norms=norms).to(DEVICE), images(sizes, (8, 3, 5, 8, 1, 8))
    rows, summed = 6 * 8, []

    class Sums(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket is torch.ops.aten.sum and args[0].shape[0] in (6, rows) and args[0].ndim > 1:
                summed.append(tuple(args[0].shape))
            return func(*args, **kwargs or {})

    y = tower(patches, lengths)
    with Sums():
        y.backward(dy)
    attention = [(rows, 2, 32)] * 2
    assert summed == [*attention, (6, 8, 32), (rows, 32)], "of q and v, the places, and the bias of the embedding"
    assert all(p.grad is not None for p in tower.parameters())


@pytest.mark.slow
def test_only_the_last_block_sets_the_peak_so_it_works_on_half_as_many_rows():
    sizes = Sizes(patch=8, patches=8, width=32, mlp=120, heads=2, layers=3)
    patches, lengths, _ = images(sizes, (8,) * 16)

    def peak(*at_once):
        tower = ours.Tower(sizes).to(DEVICE)
        for block, rows in zip(tower.blocks, at_once, strict=True):
            block.at_once = rows
        return memory.ledger(lambda: tower(patches, lengths)).peak_bytes

    assert peak(64, 64, 32) == peak(32, 32, 32) <= peak(64, 64, 64) - 2 * 32 * 120 * 4
    assert [block.at_once for block in ours.Tower(sizes).blocks] == [2**14, 2**14, 2**13]


def test_a_training_step_lowers_the_loss_and_is_the_same_for_all():
    patches, lengths, wanted = images(SMALL, (5, 2))
    first = naive.Tower(SMALL).to(DEVICE)
    towers = [first, *(made(kind, first) for kind in TOWERS.values())]
    optimizers = [training.adamw(tower, lr=1e-2) for tower in towers]
    start = torch.nn.functional.mse_loss(first(patches, lengths), wanted)
    for _ in range(3):
        losses = [training.train_step(t, o, patches, lengths, wanted) for t, o in zip(towers, optimizers)]
        assert all(p.grad is None for tower in towers for p in tower.parameters())
    stepped = [tower.state_dict() for tower in towers]
    for loss, state in zip(losses, stepped):
        torch.testing.assert_close(loss, losses[0], rtol=1e-4, atol=1e-5)
        # Adam divides by the size of a gradient: what is 0 on paper moves by rounding alone.
        for name, tensor in stepped[0].items():
            if not name.endswith("attention.k.bias"):
                torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=2e-4)
    after = training.train_step(towers[0], optimizers[0], patches, lengths, wanted)
    assert after < losses[0] < start


@pytest.mark.gpu
@pytest.mark.parametrize(("keep", "norms"), SETTINGS)
def test_a_step_is_captured_in_a_cuda_graph_and_follows_its_inputs(keep, norms):
    sizes = Sizes.so400m(layers=2)
    tower = ours.Tower(sizes, keep, norms).to(DEVICE, torch.bfloat16)
    patches, lengths, dy = images(sizes, (256, 131, 1), torch.bfloat16)
    trained = list(tower.parameters())

    def step():
        y = tower(patches, lengths)
        return y.detach(), torch.autograd.grad(y, trained, dy)  # a result that is kept holds nodes of its stream

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, grads = step()
    patches.normal_()
    lengths.copy_(torch.tensor((17, 256, 200)))
    graph.replay()
    again, grads_again = step()
    assert torch.equal(y, again) and all(torch.equal(a, b) for a, b in zip(grads, grads_again))


@pytest.mark.gpu
@pytest.mark.parametrize(("keep", "norms"), SETTINGS)
def test_large_and_in_bf16_ours_is_as_right_as_naive(keep, norms):
    sizes = Sizes.so400m(layers=2)
    truth = naive.Tower(sizes).to(DEVICE)
    given = images(sizes, (256, 131, 1, 200))
    want = results(truth, *given)
    kinds = naive.Tower, partial(ours.Tower, keep=keep, norms=norms)
    plain, got = (results(made(kind, truth, torch.bfloat16), *given) for kind in kinds)
    for name, exact in want.items():
        if not name.endswith("attention.k.bias"):
            mine, theirs = (((one[name] - exact).norm() / exact.norm()).item() for one in (got, plain))
            assert mine < 1.25 * theirs, f"{name}: {mine:.1e}, naive {theirs:.1e}"


def published(sizes, convolution):
    """Weights by the names that transformers gives them, with a head and a text tower, which we leave out."""
    torch.manual_seed(1)
    d, h = sizes.width, sizes.mlp
    embedding = (d, 3, 2, 2) if convolution else (d, sizes.patch)
    shapes = {"embeddings.patch_embedding.weight": embedding, "embeddings.patch_embedding.bias": (d,)}
    shapes |= {"embeddings.position_embedding.weight": (sizes.patches, d)}
    for i in range(sizes.layers):
        at = f"encoder.layers.{i}."
        matrices = {f"self_attn.{part}_proj": (d, d) for part in ("q", "k", "v", "out")}
        for name, shape in (matrices | {"mlp.fc1": (h, d), "mlp.fc2": (d, h)}).items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{at}{name}.weight": (d,), f"{at}{name}.bias": (d,)}
    shapes |= {"post_layernorm.weight": (d,), "post_layernorm.bias": (d,), "head.probe": (1, 1, d)}
    shapes |= {"head.attention.in_proj_weight": (3 * d, d)}
    named = {f"vision_model.{name}": torch.randn(shape) for name, shape in shapes.items()}
    return named | {"text_model.embeddings.token_embedding.weight": torch.randn(3, d), "logit_scale": torch.ones(1)}


def write_safetensors(path, tensors):
    """As the format asks: a length, a header of JSON, the tensors."""
    kinds = {dtype: name for name, dtype in weights.DTYPES.items()}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        entry = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = entry | {"data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


PLACES = {
    "places": "embeddings.position_embedding.weight",
    "blocks.1.attention.v.weight": "encoder.layers.1.self_attn.v_proj.weight",
    "blocks.1.attention.q.bias": "encoder.layers.1.self_attn.q_proj.bias",
    "blocks.0.attention.out.weight": "encoder.layers.0.self_attn.out_proj.weight",
    "blocks.0.before_mlp.bias": "encoder.layers.0.layer_norm2.bias",
    "blocks.0.before_attention.bias": "encoder.layers.0.layer_norm1.bias",
    "blocks.0.down.bias": "encoder.layers.0.mlp.fc2.bias",
    "norm.weight": "post_layernorm.weight",
}


@pytest.mark.parametrize("convolution", [True, False], ids=["convolution", "linear"])
def test_published_weights_reach_their_places_from_either_kind_of_file(tmp_path, convolution):
    sizes = Sizes(patch=12, patches=4, width=32, mlp=40, heads=2, layers=2)
    state = published(sizes, convolution)
    torch.save(state, tmp_path / "model.pt")
    halves = [tmp_path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, path in enumerate(halves):
        write_safetensors(path, dict(list(state.items())[i::2]))
    for paths in (tmp_path / "model.pt", halves):
        named = weights.renamed(weights.read(paths))
        assert weights.sizes_of(named, heads=2) == sizes
        for kind in (naive.Tower, ours.Tower):
            tower = kind(sizes)
            weights.load(tower, paths)
            got = tower.state_dict()
            assert torch.equal(
                got["blocks.1.attention.v.weight"], state["vision_model.encoder.layers.1.self_attn.v_proj.weight"]
            )
            assert torch.equal(got["blocks.0.down.bias"], state["vision_model.encoder.layers.0.mlp.fc2.bias"])
            assert torch.equal(got["norm.weight"], state["vision_model.post_layernorm.weight"])
            assert torch.equal(got["places"], state["vision_model.embeddings.position_embedding.weight"])
            assert got.keys() == kind(sizes).state_dict().keys() and tower.norm.eps == 1e-6


def test_a_convolution_and_its_flattened_weights_give_the_same_patches(tmp_path):
    sizes = Sizes(patch=12, patches=4, width=32, mlp=40, heads=2, layers=1)
    state = published(sizes, True)
    named = weights.renamed({name: t for name, t in state.items() if name.startswith("vision_model.")})
    image = torch.randn(1, 3, 4, 4)
    want = torch.nn.functional.conv2d(image, state["vision_model.embeddings.patch_embedding.weight"], stride=2)
    patches = torch.nn.functional.unfold(image, 2, stride=2).mT  # colour, row, column
    torch.testing.assert_close(patches @ named["embed.weight"].T, want.flatten(2).mT, rtol=1e-4, atol=1e-5)


def test_half_precision_weights_keep_their_bits_on_the_way_in(tmp_path):
    tensors = {"vision_model.post_layernorm.weight": torch.tensor([1.0, -2.5, 3e-3]).bfloat16()}
    write_safetensors(tmp_path / "some.safetensors", tensors)
    (got,) = weights.read(tmp_path / "some.safetensors").values()
    assert got.dtype == torch.bfloat16 and torch.equal(got, *tensors.values())


def test_a_file_of_something_else_is_refused_in_words(tmp_path):
    write_safetensors(tmp_path / "other.safetensors", {"model.layers.0.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"other.safetensors .*is it a SigLIP model"):
        weights.read(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"vision_model.rotary.weight has no place"):
        weights.renamed({"vision_model.rotary.weight": torch.ones(2)})


@pytest.mark.parametrize(
    "hidden", ["course_lib.kernels", pytest.param("course_lib.models.siglip.ours", marks=pytest.mark.slow)]
)
def test_where_the_kernels_or_the_file_are_left_out_ours_says_so(hidden):
    """In a process of its own, in which nothing below `hidden` can be found."""
    code = f"""
import sys
class Left:
    def find_spec(self, name, path=None, target=None):
        if name == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Left())
from course_lib.models.siglip import Sizes, naive, strong
naive.Tower(Sizes()), strong.Tower(Sizes())
try:
    from course_lib.models.siglip import ours
except ModuleNotFoundError as refused:
    assert "comes without course_lib/kernels" in str(refused), refused
else:
    raise SystemExit("it was there")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
