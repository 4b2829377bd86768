"""The pictures of lesson 05: what an MLP keeps, a number in four formats, rounding once and twice."""

import pytest
from matplotlib.text import Text

pytest.importorskip("ipywidgets", reason="needs ipywidgets, and this machine has none")

from course_lib import widgets
from course_lib.kernels.mlp import KEEP, bytes_kept
from course_lib.memory.keeping import KEPT, mlp_ledger
from course_lib.plots.formats import format_rows
from course_lib.widgets.rounding import rounding_errors


@pytest.mark.parametrize("keep", KEEP)
def test_what_is_kept_on_paper_is_what_the_kernels_keep(keep):
    tokens, width, hidden = 256, 256, 512  # every tensor a multiple of the allocator's 512 bytes
    account = mlp_ledger(tokens, width, hidden, keep)
    kept = sum(size for owner, size in account.owners_at(account.forward - 1).items() if owner.endswith("kept"))
    assert kept == bytes_kept(tokens, width, hidden, keep)


def test_layers_add_up_what_is_kept_and_not_what_passes():
    held = {n: mlp_ledger(256, 256, 512, "input", n) for n in (2, 5)}
    x = 256 * 256 * 2
    assert held[5].held_bytes - held[2].held_bytes == 3 * x
    # of the peak, the part in passing stays: three more inputs, and gradients of weights of the layers before
    assert held[5].peak_bytes - held[2].peak_bytes < 3 * (x + 2 * 256 * 512 * 2) + x


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="everything, pre-activation, input"):
        mlp_ledger(1, 1, 1, "nothing")


def test_a_number_is_drawn_with_what_each_format_makes_of_it():
    ax = format_rows([1e6])
    said = [t.get_text() for t in ax.findobj(Text)]
    assert "inf: too large" in said and "NaN: too large" in said and "1000000, exact" in said
    assert "999424, off by 0.0006" in said


def test_one_rounding_is_nearly_always_correct_and_two_are_not():
    off = rounding_errors("bf16", 64)
    assert (off["fused"].abs() <= 0.5 + 1e-3).all()
    correct = float((off["apart"].abs() <= 0.5).double().mean())
    assert 0.6 < correct < 0.85
    assert off["apart"].abs().max() > 1


def test_a_narrow_accumulator_is_worse_than_both():
    explorer = widgets.rounding_explorer()
    explorer.controls["k"].value = 64
    fine = explorer.words.value
    explorer.controls["accumulator"].value = "the same format"
    assert fine != explorer.words.value
    assert float(explorer.words.value.split()[1]) > 1.0 > float(fine.split()[1])


def test_a_format_explorer_reads_the_number():
    explorer = widgets.format_explorer()
    explorer.controls["number"].value = 1000.0
    explorer.controls["power"].value = 10
    assert "fp16 inf: too large" in explorer.words.value and "fp32 1024000, exact" in explorer.words.value


def test_the_memory_explorer_says_what_is_held():
    explorer = widgets.memory_explorer(tokens=256, width=256, hidden=512, layers=1)
    assert set(explorer.controls["keep"].options) == set(KEPT)
    before = explorer.words.value
    explorer.controls["keep"].value = "input"
    assert "256 KiB" in explorer.words.value and explorer.words.value != before
