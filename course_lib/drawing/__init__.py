"""How the figures of `course_lib.plots` are drawn, one kind of figure a file."""
