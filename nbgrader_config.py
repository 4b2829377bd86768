"""Settings for nbgrader's own commands, run from this folder."""

import os
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parent
# Commands and the kernels they start find course_lib and autograder without an installation.
sys.path.insert(0, str(COURSE))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(COURSE), os.environ.get("PYTHONPATH")]))

# What a command writes is its owner's alone: names, answers, seeds, marks. nbgrader opens what goes into the exchange.
os.umask(0o077)

try:
    import warnings

    from sqlalchemy.exc import SAWarning

    warnings.filterwarnings("ignore", category=SAWarning)  # nbgrader's own, twenty a submission

    from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
    from nbgrader.preprocessors import (
        AssignLatePenalties,
        CheckCellMetadata,
        ClearHiddenTests,
        ClearMarkScheme,
        ClearOutput,
        ComputeChecksums,
        DeduplicateIds,
        GetGrades,
        LimitOutput,
        LockCells,
        OverwriteCells,
        OverwriteKernelspec,
        SaveCells,
    )

    from autograder.classroom.collecting import Collect, LmsArchive, NamedFiles, ReleaseFeedback
    from autograder.classroom.collecting import install as end_where_files_are_missing
    from autograder.classroom.export import Feedback, Grades, WhatWaits
    from autograder.classroom.export import install as make_feedback_anew
    from autograder.classroom.grading import JudgedNotebook, TakenNotebook, install
    from autograder.classroom.late import LateDays
    from autograder.classroom.marking import install as show_what_waits
    from autograder.classroom.marks import SavedMarks
    from autograder.classroom.sanitize import disarm
    from autograder.classroom.stubs import StableNotebook, StubSolutions

    install()
    end_where_files_are_missing()
    make_feedback_anew()
    disarm()
    show_what_waits()
except Exception as error:
    # nbgrader would go on without these settings, and run the students' code as it is: end the command instead
    raise SystemExit(
        f"nbgrader_config.py cannot be loaded ({type(error).__name__}: {error}); nothing was done"
    ) from error

c = get_config()  # noqa: F821  traitlets puts it here

c.CourseDirectory.course_id = "speed-of-light"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
# Everything beside a lesson is released except its script and what editors leave behind.
c.CourseDirectory.ignore = ["*.py", "*.pyc", "__pycache__", ".*", "feedback"]

# Everybody reads and writes in the exchange, so it lies beside the course and not in it; `nbgrader release_assignment`
# makes it. A site that has one passes --Exchange.root=/its/folder.
c.Exchange.root = str(COURSE.with_name(f"{COURSE.name}-exchange"))
c.Exchange.assignment_dir = str(COURSE / "work")  # what a student submits is what `make lab` opened
c.ExchangeFactory.collect = Collect
c.ExchangeFactory.release_feedback = ReleaseFeedback
# Where `nbgrader zip_collect` finds the student in the names of an LMS's archive, and the number of the student there:
# Canvas writes lovelaceada_1234_5678_roofline.ipynb, Moodle "Ada Lovelace_1234_assignsubmission_file_/roofline.ipynb",
# Gradescope assignment_7_export/submission_1234/roofline.ipynb, and in a file beside it who that is. What follows is
# named by the student, and says nothing about that; nor does the beginning of a folder of Moodle, which is a name that
# people may choose: what Moodle itself writes comes last.
c.FileNameCollectorPlugin.named_regexp = r"""(?x)
    (?:(?:(?![^/]*_assignsubmission_)[^/]+/){0,2}?(?=submission_\d+/)  # Gradescope's archive has a folder of its own
    | (?:(?![^/]*_assignsubmission_)[^/]+/)?)  # the folder of the archive
    (?P<student_id>
        [^/]+(?=_\d+_assignsubmission_[a-z]+_/)  # of Moodle, a folder each
        | [^_/]+(?=_(?:LATE_)?\d+_\d+_(?!assignsubmission_))  # of Canvas, before the number of the file
        | [^/]+?(?=_\d+_assignsubmission_)  # of Moodle without folders
        | [^_/]+
    )_
    (?P<late>LATE_)?(?:(?P<number>\d+)(?:_\d+_|_assignsubmission_[^/_]*_|(?=/)))?
    (?:.*/)?(?P<file_id>[^/]+)\.(?:ipynb|zip|ZIP)$"""
c.FileNameCollectorPlugin.valid_ext = [".ipynb", ".zip", ".ZIP"]
c.ZipCollectApp.extractor_plugin = LmsArchive
c.ZipCollectApp.collector_plugin = NamedFiles

# notebooks/ is committed, so it is always there already; a rebuild gives the same bytes.
c.GenerateAssignment.force = True
# nbgrader's own list, with our stubs instead of its own and a last step that makes builds repeatable.
c.GenerateAssignment.preprocessors = [
    LockCells,
    StubSolutions,
    ClearOutput,
    CheckCellMetadata,
    ComputeChecksums,
    SaveCells,
    ClearHiddenTests,
    ClearMarkScheme,
    ComputeChecksums,
    CheckCellMetadata,
    StableNotebook,
]

# A cell of a lesson measures for seconds; the first one of a session also compiles.
c.Execute.timeout = 300
c.Execute.startup_timeout = 120

# The referee decides marks where nbgrader would run the notebook: no cell of a student runs outside the sandbox.
c.Autograde.sanitize_preprocessors = [
    TakenNotebook,
    ClearOutput,
    DeduplicateIds,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    JudgedNotebook,
    LimitOutput,
    SavedMarks,
    AssignLatePenalties,
    CheckCellMetadata,
]

# Late days: those of a student in the whole course that cost nothing, and per cent of the points for each one beyond.
c.AssignLatePenalties.plugin_class = LateDays
c.LateDays.free_days = 0
c.LateDays.percent_a_day = 0

c.GenerateFeedback.preprocessors = [GetGrades, WhatWaits, CSSHTMLHeaderPreprocessor]
c.GenerateFeedback.exporter_class = Feedback
c.ExportApp.plugin_class = Grades

# Feedback and formgrader show what a student wrote through these steps.
c.HTMLExporter.filters = {
    "markdown2html": "autograder.classroom.sanitize.rendered",
    "strip_files_prefix": "autograder.classroom.sanitize.harmless",
    "highlight_code": "autograder.classroom.sanitize.coloured",
}
