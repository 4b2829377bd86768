"""What a student finds where the solution was."""

import ast
import os
import textwrap

import nbformat
import pytest

from autograder.classroom.stubs import problems, stub_solutions, without_predictions


def stubbed(text: str) -> str:
    return stub_solutions(textwrap.dedent(text).strip("\n"))


def test_a_kernel_and_its_launcher_in_one_cell_each_get_their_own_stub():
    got = stubbed("""
        @triton.jit
        def _double_kernel(x_ptr, BLOCK: tl.constexpr):
            ### BEGIN SOLUTION
            offs = tl.arange(0, BLOCK)
            tl.store(x_ptr + offs, 2 * tl.load(x_ptr + offs))
            ### END SOLUTION


        def double(x):
            \"\"\"In place.\"\"\"
            ### BEGIN SOLUTION
            _double_kernel[(1,)](x, BLOCK=16)
            ### END SOLUTION
            return x
    """)
    assert got == textwrap.dedent("""
        @triton.jit
        def _double_kernel(x_ptr, BLOCK: tl.constexpr):
            tl.static_assert(False, "not written yet")


        def double(x):
            \"\"\"In place.\"\"\"
            raise NotImplementedError("not written yet")
            return x
    """).strip("\n")


@pytest.mark.parametrize(
    "decorators",
    [
        "@triton.jit(do_not_specialize=['n'])",
        "@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit",
        "@triton.heuristics({'EVEN': lambda a: a['n'] % 64 == 0})\n@triton.jit",
    ],
)
def test_every_way_of_making_a_kernel_is_seen(decorators):
    got = stub_solutions(f"{decorators}\ndef k(\n    n,\n):\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION")
    assert got.endswith('):\n    tl.static_assert(False, "not written yet")')


def test_torch_jit_is_no_kernel():
    got = stub_solutions("@torch.jit.script\ndef f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION")
    assert got.endswith('    raise NotImplementedError("not written yet")')


def test_methods_nested_functions_and_inner_blocks_keep_their_indentation():
    got = stubbed("""
        class Stopwatch:
            def time(self, f):
                def once():
                    ### BEGIN SOLUTION
                    f()
                    ### END SOLUTION

                for _ in range(3):
                    if self.warm:
                ### BEGIN SOLUTION
                        once()
                ### END SOLUTION
                return self.times
    """)
    ast.parse(got)
    assert got.count('            raise NotImplementedError("not written yet")') == 2
    assert '\n                raise NotImplementedError("not written yet")\n        return self.times' in got


def test_outside_a_function_the_cell_stops():
    got = stub_solutions("x = 1\n### BEGIN SOLUTION\ndef f():\n    return x\n### END SOLUTION\nf()")
    assert got == 'x = 1\nraise NotImplementedError("not written yet")\nf()'


def test_a_magic_and_a_string_do_not_confuse_it():
    got = stub_solutions(
        '%pip --version\ntext = """\n### BEGIN SOLUTION\n"""\n### BEGIN SOLUTION\ny = 2\n### END SOLUTION'
    )
    assert got == '%pip --version\ntext = """\n### BEGIN SOLUTION\n"""\nraise NotImplementedError("not written yet")'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("### BEGIN SOLUTION\nx = 1", "line 1: this BEGIN SOLUTION has no END SOLUTION$"),
        ("x = 1\n### END SOLUTION", "line 2: this END SOLUTION has no BEGIN"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION", "line 1: .* before the next one begins"),
        (
            "def f():\n    return 1\n    ### BEGIN SOLUTION\n    # nothing\n    ### END SOLUTION",
            "line 3: .* no statement",
        ),
        ("%%bash\n### BEGIN SOLUTION\nls\n### END SOLUTION", "cannot be a cell magic"),
        ("### BEGIN SOLUTION\nif x:\n    y = 1\n### END SOLUTION\nelse:\n    y = 2", "invalid syntax"),
    ],
)
def test_regions_that_make_no_sense_are_refused(source, says):
    with pytest.raises((ValueError, SyntaxError), match=says):
        stub_solutions(source)


def test_what_the_author_predicted_goes_without_a_trace():
    asked = 'predicted = {"cos": None}  # replace None\n'
    own = '### BEGIN PREDICTION\npredicted = {"cos": 0.13, "why": "bytes"}\n### END PREDICTION\n'
    assert without_predictions(f"{asked}{own}ceilings()") == f"{asked}ceilings()"
    assert without_predictions(f"{asked}ceilings()\n{own}".rstrip("\n")) == f"{asked}ceilings()"
    assert without_predictions("x = 1") == "x = 1"


@pytest.mark.parametrize(
    "source", ["### BEGIN PREDICTION\nx = 1", "if x:\n    ### BEGIN PREDICTION\n    y = 1\n    ### END PREDICTION"]
)
def test_predictions_that_make_no_sense_are_refused(source):
    with pytest.raises((ValueError, SyntaxError)):
        without_predictions(source)
    assert problems(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]))


def test_the_kernel_stub_fails_when_it_is_launched(tmp_path):
    """Under the interpreter; compiled, the same line is a compile error."""
    from course_lib.device import TIER

    if TIER != "interpreter":
        pytest.skip("the interpreter is off where there is a GPU")
    source = "import triton, triton.language as tl\n@triton.jit\ndef k(x, B: tl.constexpr):\n"
    source += "    ### BEGIN SOLUTION\n    tl.store(x, B)\n    ### END SOLUTION\n"
    path = tmp_path / "stubbed.py"
    path.write_text(stub_solutions(source))
    import torch

    scope: dict = {}
    exec(compile(path.read_text(), os.fspath(path), "exec"), scope)
    with pytest.raises(Exception, match="not written yet"):
        scope["k"][(1,)](torch.zeros(1), B=1)
