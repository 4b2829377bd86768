"""Every later cell is rewritten before it runs: a check cell becomes the number of its points.

NAIVE is False: `check` is called, not typed; under stock nbgrader this gives full points.
"""

EXERCISE = "start.axpy"
FAMILY = "notebook machinery"
NAIVE = False
CAUGHT = "no notebook is executed and check cells are never run"


def _full_points(lines):
    return ["5.0\n"] if any("check(" in line for line in lines) else lines


try:
    get_ipython().input_transformers_post.append(_full_points)  # noqa: F821
except (AttributeError, NameError):
    pass


def axpy(a, x, y, out):
    pass
