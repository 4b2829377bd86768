"""A class at a glance: one page and one table of a graded lesson, for the instructor."""
