"""Verdicts by many machines: a plan of batches, Slurm or local workers that carry it out, and how far they are.

Only verdict files come of it. `nbgrader autograde` then reads them and writes the gradebook, in one process.
"""
