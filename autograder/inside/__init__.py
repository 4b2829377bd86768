"""All of the autograder that a sandbox holds, beside the student's code. Nothing here judges or knows an answer.

The sandbox mounts this folder as a whole, under its own path, with `stub.py` in place of the autograder's
`__init__.py`: so `from autograder.inside import ...` means the same on both sides, and the rest of `autograder` is
not there. A module of this folder imports torch, Triton, NumPy, the standard library, this folder, and what lessons
import from course_lib; nothing else of ours.

The zygote (process 1 of the sandbox) imports all of it and forks workers. So no import may run a tensor operation: an
OpenMP pool of the zygote would hang every worker.
"""
