"""Ours against the best alternatives, in one process, turn by turn. `make bench`, or `python -m benchmarks softmax`."""
