from types import SimpleNamespace

import pytest
from matplotlib.text import Text

from course_lib import plots
from course_lib.compiled.occupancy import residents


def made(registers, shared_bytes, num_warps=4, arch=90, spills_bytes=0):
    return SimpleNamespace(
        registers=registers, shared_bytes=shared_bytes, num_warps=num_warps, arch=arch, spills_bytes=spills_bytes
    )


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs", "limit"),
    [
        (128, 0, 4, 4, "registers"),  # 128 x 128 threads = a quarter of 65536
        (134, 56 * 1024, 4, 3, "registers"),
        (127, 64 * 1024, 4, 3, "shared memory"),
        (255, 160 * 1024, 8, 1, "registers and shared memory"),
        (32, 1024, 4, 16, "registers and warps"),
        (16, 0, 4, 16, "warps"),
        (16, 0, 1, 32, "warps"),  # never more than 32 programs
    ],
)
def test_what_runs_out_first_sets_the_number(registers, shared, warps, programs, limit):
    here = residents(made(registers, shared, warps))
    assert (here.programs, here.limit) == (programs, limit)


def test_registers_are_given_to_a_warp_in_eights_a_thread():
    assert residents(made(129, 0)).registers == residents(made(136, 0)).registers == 136 * 128
    assert residents(made(137, 0)).registers == 144 * 128


def test_shared_memory_of_the_system_counts():
    assert residents(made(32, 227 * 1024)).programs == 1
    assert residents(made(32, 114 * 1024)).programs == 1  # twice 115 KiB is more than 228
    assert residents(made(32, 113 * 1024)).programs == 2
    assert residents(made(32, 228 * 1024)).programs == 0
    assert residents(made(32, 100 * 1024, arch=80)).programs == 1


def words(ax):
    return "\n".join(text.get_text() for text in ax.figure.findobj(Text))


def test_the_figure_draws_every_resident_program_and_says_what_runs_out():
    ax = plots.programs_that_fit({"small": made(128, 1024), "large": made(255, 200 * 1024, 8, spills_bytes=96)})
    assert len(ax.patches) == 3 * (4 + 1)
    said = " ".join(words(ax).split())
    assert "4; registers run out" in said and "1; registers and shared memory run out, spills 96 B" in said
    assert "1 to 4 programs fit on a multiprocessor" in said


def test_a_kernel_that_does_not_fit_says_so():
    assert "does not fit: shared memory" in words(plots.programs_that_fit({"huge": made(32, 300 * 1024)}))
