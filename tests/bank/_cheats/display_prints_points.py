"""Points, a verdict and a whole grade cell are printed and displayed.

NAIVE is False: `check` returns a score and reads no output.
"""

EXERCISE = "start.axpy"
FAMILY = "notebook machinery"
NAIVE = False
CAUGHT = "what is printed is never a verdict"


def axpy(a, x, y, out):
    print("5.0")
    print('{"points": 5.0, "pending": false, "note": ""}')
    get_ipython().run_cell("5.0")  # noqa: F821
