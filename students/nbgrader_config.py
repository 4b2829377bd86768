"""Settings for `nbgrader submit`, where a course collects that way: pip install nbgrader, and run it in this folder."""

from pathlib import Path

c = get_config()  # noqa: F821  traitlets puts it here
c.CourseDirectory.course_id = "speed-of-light"
c.Exchange.assignment_dir = str(Path(__file__).resolve().parent / "work")
