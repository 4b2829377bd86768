"""Processes: the submission's code on one side, the truth on the other. Knows nothing of nbgrader's commands."""
