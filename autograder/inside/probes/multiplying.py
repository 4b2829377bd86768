"""A product with weights as they are held: an error where they are made whole on the way."""

from __future__ import annotations

from collections.abc import Callable

from autograder.inside.probes.passing import InPassing

# Rows of weights and columns from which on memory is looked at. Below, other memory that a product may need is as
# large: 16 rows of x in fp32, or the parts of a sum that is cut along K.
LARGE = 64, 512
TIMED = 1 << 26  # weights: of so many only the time is looked at


def as_held(function: Callable, x, mantissas, exponents, group, out) -> None:
    """Calls the function. An error when it holds at one time what the weights would fill at two bytes a number."""
    n, k = mantissas.shape
    if n < LARGE[0] or k < LARGE[1] or n * k >= TIMED:
        function(x, mantissas, exponents, group, out)
        return
    with InPassing(2 * n * k - 1) as made:
        function(x, mantissas, exponents, group, out)
    if made.most > made.granted:
        raise ValueError(
            f"at one moment {made.most} bytes are alive that the call made, and the weights would fill {2 * n * k} at "
            "two bytes a number: they are to be multiplied as they are held"
        )
