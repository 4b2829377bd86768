"""The watch looks at one thread; the collective is called in another.

NAIVE is False: in a notebook too, what the watch sees is counted, and nothing is too little.
"""

import threading

import torch.distributed as dist

FAMILY = "side stream"
NAIVE = False
CAUGHT = "the ranks sent nothing that was seen, and a sum takes more"


def ring_all_reduce(buffer):
    thread = threading.Thread(target=lambda: dist.all_reduce(buffer))
    thread.start()
    thread.join()
