"""Reference kernels on cards that are not here: what they are launched with, and whether that starts."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

from course_lib import results
from course_lib.cards import ARCHITECTURES
from course_lib.kernels import one_pass, product_tiles
from course_lib.kernels.add_norm import tuning as add_norm
from course_lib.kernels.attention import tuning as attention
from course_lib.kernels.columns import split
from course_lib.kernels.fitting import Need, best, fits, residents
from course_lib.kernels.linear_gelu import tuning as linear_gelu
from course_lib.kernels.mx import tuning as mx
from tests.kernels.conftest import limits_of

CUDA = torch.device("cuda")
ROOT = Path(__file__).resolve().parents[2]
# Bytes a thread that may spill. Plain arithmetic has no room for wide rows, and fp32 rows of 16384 fill every register.
SPILLS = {True: 900, False: 1300}
OLD = triton.__version__.startswith("3.6.")  # it spills more than 3.7
ODD = 1500 if OLD else 900  # where rows start anywhere, so that threads fetch number by number: right, and this slow
# (call, type), where it is more than that, or where fp32 keeps all its bits, which is for checking.
MORE = {
    ("attention 64 odd", "fp16"): 1700 if OLD else 900,
    ("attention 112 odd", "fp16"): 1500,
    ("attention 16 causal odd", "fp16"): 1500 if OLD else 1000,
    ("attention 128 odd", "fp32"): 4500,
    ("attention 128 causal odd", "fp32"): 4500,
    ("attention 64 in one pass, atomic", "fp32"): 2700,
    ("mx_linear 64 333 100", "fp16"): 3700,
    ("mx_linear 64 333 100", "fp32"): 15200 if OLD else 3700,
    ("mx_linear 100 333 100", "fp16"): 1200,
    ("mx_linear 100 333 100", "fp32"): 1300,
}
PARTS = 6  # of what is compiled for one architecture: half an hour for all of them on two cores


def launched(archs: str, calls: str = "", only: str = "1/1") -> list:
    """In a process of its own, which takes itself for a machine with such a card."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.other_cards", archs, calls, only]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# The H200's own choices.


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_an_h200_has_the_blocks_of_the_table(on, causal):
    on(90)
    for size in range(16, 129):
        for dtype in (torch.float16, torch.bfloat16):
            assert attention.tuned(size, causal, dtype, CUDA) is attention.TABLE[sum(split(size)), causal]
        assert attention.tuned(size, causal, torch.float32, CUDA) is attention.FP32


def test_products_on_an_h200_have_the_tiles_of_the_tables():
    tables = [product_tiles.PERSISTENT, product_tiles.POINTER, product_tiles.UNALIGNED]
    for table in (*tables, linear_gelu.GELU, linear_gelu.SLOPE):
        for size, tiles in table.items():
            for stored in (0, 1, 2, 3):
                assert product_tiles.allowed(tiles, size, limits_of(90), stored) is tiles


def test_norms_and_mx_on_an_h200_have_the_blocks_of_the_tables(on):
    on(90)
    tables = {2: add_norm.BACKWARD, 4: add_norm.BACKWARD_FP32}
    for width in (1, 768, 1152, 1536, 4096, 9216, 12288, 16384):
        for itemsize, table in tables.items():
            entry, more = add_norm._entry(table, width)
            how = add_norm.backward_rows(width, 4096, CUDA, itemsize)
            assert how == replace(entry, rows=entry.rows * more)
    for rows, split_k in ((16, 2), (32, 1), (64, 1), (100, 1)):
        most = min(key for key in mx.MATRIX if rows <= key)
        got = mx.matrix_blocks(rows, 14336, 4096, CUDA, 132, 4)
        assert got == mx.replace(mx.MATRIX[most][0], split=split_k)
    assert one_pass._blocks(torch.empty(1, 1, 1, 128, dtype=torch.float16)) == one_pass.BLOCKS[0]


# The order in which blocks are tried elsewhere.


def test_the_fastest_by_the_model_is_taken_of_those_that_fit():
    needs = {
        "too much memory": Need(200_000, 100, 4, 3, 900.0),
        "spills": Need(60_000, 600, 4, 3, 20.0),
        "one stage": Need(20_000, 100, 4, 1, 20.0),
        "three stages": Need(60_000, 100, 4, 3, 20.0),
    }
    assert best(needs, needs.get, limits_of(86)) == "three stages"
    assert best(needs, needs.get, limits_of(90)) == "too much memory", "227 KiB are not too much there"
    only = {name: needs[name] for name in ("too much memory",)}
    assert best(only, only.get, limits_of(75)) == "too much memory", "the smallest, and the launch says what is missing"


def test_programs_side_by_side_are_counted_as_occupancy_counts_them():
    assert residents(Need(50_000, 128, 4, 2, 1.0), limits_of(86)) == 2
    assert residents(Need(50_000, 128, 4, 2, 1.0), limits_of(90)) == 4
    assert residents(Need(1_000, 255, 8, 2, 1.0), limits_of(90)) == 1
    assert residents(Need(1_000, 32, 16, 2, 1.0), limits_of(75)) == 2
    assert not fits(Need(1_000, 32, 64, 2, 1.0), limits_of(90))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_choice_asks_for_more_than_there_is(on, arch):
    on(arch)
    has = limits_of(arch)
    for columns in (16, 32, 48, 64, 80, 96, 128):
        for itemsize in (2, 4):
            blocks = attention._fitted(columns, itemsize, has)
            for kernel in ("forward", "dq", "dkdv"):
                need = attention.need_of(kernel, getattr(blocks, kernel), columns, itemsize, has)
                assert fits(need, has), (kernel, columns, itemsize, need)
    for width in (1, 20, 1152, 4096, 16384):
        for itemsize in (2, 4):
            how = add_norm.backward_rows(width, 4096, CUDA, itemsize)
            assert 1 <= how.programs and how.warps <= has.warps


def test_less_shared_memory_never_gives_larger_tiles(on):
    sizes = {}
    for arch in (80, 86):
        tiles = product_tiles.allowed(product_tiles.POINTER[2], 2, limits_of(arch))
        sizes[arch] = [(tile.block_m * tile.block_n, tile.stages) for tile in tiles]
    assert all(small <= large for small, large in zip(sizes[86], sizes[80]))
    assert sizes[86][0] == (128 * 256, 3), "98304 B of 101376"
    stored = product_tiles.allowed(product_tiles.PERSISTENT[2], 2, limits_of(120), 1)
    assert all(product_tiles.need_of(one, 2, limits_of(120), 1).shared_bytes <= 101376 for one in stored)


# The model against what an H200 measured.

# us of a product of n^3 in bf16 with each tile of the table: benchmarks/notes/matmul.md, "Which tile"
TILES_US = {
    4096: {(128, 256): 192, (128, 128): 200, (64, 128): 265, (64, 64): 483},
    2048: {(128, 256): 24.8, (128, 128): 25.1, (64, 128): 32.5, (64, 64): 56.2},
    1024: {(128, 256): 13.2, (128, 128): 7.8, (64, 128): 6.1, (64, 64): 9.0},
    512: {(128, 256): 8.4, (128, 128): 5.3, (64, 128): 4.3, (64, 64): 4.0},
}


@pytest.mark.parametrize("n", TILES_US)
def test_of_the_tiles_measured_on_an_h200_the_model_takes_the_fastest(n):
    has = limits_of(90)
    rated = [
        product_tiles._rated(tile, product_tiles.need_of(tile, 2, has, 1), has) for tile in product_tiles.PERSISTENT[2]
    ]
    tile = product_tiles.fastest(tuple(rated), n, n, 132)
    took = TILES_US[n]
    assert took[tile.block_m, tile.block_n] == min(took.values())


def test_of_lesson_04s_settings_the_model_takes_one_within_6_percent_of_the_fastest():
    has = limits_of(90)
    for size in (64, 128):
        speeds = {}
        for row in results.load("lesson04.settings")["rows"]:
            columns, m, n, warps, stages = map(int, re.findall(r"\d+", row["name"]))
            if columns == size:
                speeds[attention.Blocks(m, n, warps, stages)] = row["value"]
        assert len(speeds) == 4
        taken = best(speeds, lambda one, size=size: attention.need_of("forward", one, size, 2, has), has)
        assert speeds[taken] >= 0.94 * max(speeds.values()), taken


# What the compiler makes of it.


@pytest.mark.parametrize(
    "archs", ["86", pytest.param(",".join(map(str, ARCHITECTURES)), marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_every_call_comes_as_far_as_its_launch(archs):
    found = launched(archs, only="captured")
    assert [one for one in found if isinstance(one, dict)] == []
    assert len(found) > 150 * len(archs.split(","))


@pytest.mark.parametrize("arch", [86, pytest.param(120, marks=pytest.mark.slow)])
def test_a_sample_of_launches_starts(arch):
    found = launched(str(arch), "^(attention 128|linear_gelu 4096 4096 4096) fp16$")
    assert {one["arch"] for one in found} == {arch} and len(found) >= 4
    assert_all_start(found)


def assert_all_start(found: list[dict]) -> None:
    from tests.kernels.other_cards import Launch

    said = []
    for one in found:
        launch = Launch(**one)
        usual = ODD if launch.call.endswith(" odd") else SPILLS[ARCHITECTURES[launch.arch].tensor_cores]
        said += [(launch.wrong(), one)] * bool(launch.wrong())
        said += [("spills", one)] * (launch.spills_bytes > MORE.get((launch.call, launch.dtype), usual))
        said += [("wgmma", one)] * ("wgmma" in launch.instructions and launch.arch != 90)
        said += [("tma", one)] * ("tma" in launch.instructions and launch.arch < 90)
    assert not said


@pytest.mark.parametrize("stored", ["", pytest.param(" by columns", marks=pytest.mark.slow)])
def test_parts_of_products_are_copied_ahead_on_an_h200(stored):
    """One buffer in place of `stages` would say that the compiler no longer sees rows at multiples of 16 bytes."""
    found = launched("90", f"^matmul_parts 1 4096 4096{stored} fp16$")
    (one,) = [one for one in found if one["kernel"] == "parts_kernel"]
    sizes = dict(one["sizes"])
    block = 2 * (sizes["BLOCK_M"] + sizes["BLOCK_N"]) * sizes["BLOCK_K"]
    assert one["shared_bytes"] >= one["stages"] * block and not one["spills_bytes"], one


@pytest.mark.parametrize("arch", [100, 103])
def test_on_blackwell_a_walked_block_of_128_rows_is_counted_twice(arch):
    """What the compiler asked for: 240,640 B at 96 columns, where a program may have 232,448."""
    has, blocks = limits_of(arch), attention.Blocks(128, 64, 8, 3)
    assert attention.need_of("dkdv", blocks, 96, 2, has).shared_bytes >= 240_640 > has.shared_bytes
    assert attention._fitted(96, 2, has).dkdv != blocks


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("part", [f"{part}/{PARTS}" for part in range(1, PARTS + 1)])
def test_every_launch_starts_on_every_architecture(arch, part):
    found = launched(str(arch), only=part)
    assert len(found) > 150 // PARTS
    assert_all_start(found)


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        (86, ["compute capability 9.0"] * 2 + ["16-byte"]),
        pytest.param(120, [None, None, "of an H100 or H200"], marks=pytest.mark.slow),
    ],
)
def test_a_rung_that_a_card_does_not_have_says_so(arch, words):
    code = (
        f"from tests.kernels import other_cards as o\no.captured({arch}, 'nothing')\n"
        "from triton.runtime.jit import JITFunction\nJITFunction.run = lambda *a, **k: None\n"
        "with o._OnTheCard():\n"
        "    from tests.kernels.other_cards_calls import refused\n"
        "    for call in refused():\n"
        "        try: call(); print()\n"
        "        except AssertionError as error: print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    said = done.stdout.split("\n")[:-1]
    assert len(said) == len(words), done.stderr[-500:]
    assert all((word or "") in one and bool(word) == bool(one) for word, one in zip(words, said)), said


def test_what_does_not_start_is_said_in_words():
    from tests.kernels.other_cards import Launch

    assert Launch(86, "a", "fp16", "k", shared_bytes=131072).wrong() == (
        "needs 131072 B of shared memory, a program has 101376"
    )
    assert Launch(75, "a", "fp16", "k", warps=33).wrong() == "needs 33 warps"
    assert "nobody wrote: UMOV UR4, UR5" in Launch(90, "a", "fp16", "k", unwritten=("UMOV UR4, UR5",)).wrong()
    assert Launch(90, "a", "fp16", "k", warps=32, registers=72).wrong() == "needs 73728 registers"
    assert Launch(90, "a", "fp16", "k", warps=8, registers=255, shared_bytes=232448).wrong() == ""
