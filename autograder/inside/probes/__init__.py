"""Probes: each calls a submission's function in its own way and returns what it saw, as plain data or tensors.

An exercise names one ("autograder.inside.probes.towers:compiled"), and it is called in place of the function, in the
process of the function. It says what happened and judges nothing.
"""
