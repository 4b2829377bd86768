"""The memory of process 1, from which every worker is forked, is opened to put another `calling.call` there.

NAIVE is False: there is no such process beside a notebook.
"""

EXERCISE = "start.axpy"
FAMILY = "zygote"
NAIVE = False
CAUGHT = "process 1 is undumpable"


def axpy(a, x, y, out):
    out.zero_()
    with open("/proc/1/maps") as maps:
        heap = next(line for line in maps if "[heap]" in line)
    first, last = (int(end, 16) for end in heap.split()[0].split("-"))
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        memory.seek(first)
        page = memory.read(last - first)
        memory.seek(first)
        memory.write(page.replace(b"launches", b"lauNches"))
