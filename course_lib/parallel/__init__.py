"""Data parallel training, one idea a file: naive, flat, overlap, buckets, sharded."""

from course_lib.parallel.buckets import Buckets
from course_lib.parallel.flat import Flat
from course_lib.parallel.naive import Naive
from course_lib.parallel.overlap import Overlap
from course_lib.parallel.sharded import Sharded

__all__ = ["Buckets", "Flat", "Naive", "Overlap", "Sharded"]
