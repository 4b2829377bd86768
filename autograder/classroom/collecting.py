"""`nbgrader collect`, `zip_collect` and `release_feedback`, which end at nobody's folder.

nbgrader's own copies what a link leads to with the rights of the instructor: a student who links a notebook to somebody
else's hands that one in. Here a link stays a link, and `handed_in.take` then says that it is one.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import math
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from nbgrader.api import Gradebook
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin
from nbgrader.utils import notebook_hash, parse_utc, unzip

from autograder.classroom import export, handed_in, roster


class ReleaseFeedback(ExchangeReleaseFeedback):
    """To those who handed in through the exchange: their secret, which lies where they handed in, leads to a page.

    nbgrader's own reads the secret beside the page, where grading puts nothing that was handed in."""

    def copy_files(self) -> None:
        left_out, lesson = self.coursedir.student_id_exclude.split(","), self.coursedir.assignment_id
        for page in map(Path, sorted(glob.glob(f"{self.src_path}/*.html"))):
            student = page.parents[1].name
            if student in left_out:
                continue
            submission = Path(self.coursedir.format_path(self.coursedir.submitted_directory, student, lesson))
            autograded = self.coursedir.format_path(self.coursedir.autograded_directory, student, lesson)
            secret, stamp = handed_in.secret_of(submission), handed_in.stamp_of(submission)
            anew = f"nbgrader generate_feedback {lesson}"
            if not export.is_current(self, page, Path(autograded, f"{page.stem}.ipynb")):
                self.log.warning("%s: the marks changed since this page was made; first %s", student, anew)
            elif not secret:
                self.log.warning("%s did not hand in through the exchange: give them %s yourself", student, page)
            elif stamp != handed_in.stamp_of(page.parent):
                self.log.warning(
                    "%s handed in again: nbgrader autograde %s and generate_feedback first", student, lesson
                )
            else:
                to = Path(self.dest_path, notebook_hash(secret=secret, notebook_id=page.stem))
                shutil.copyfile(page, to.with_name(f"{to.name}-tmp.html"))
                os.chmod(to.with_name(f"{to.name}-tmp.html"), 0o644)
                os.replace(to.with_name(f"{to.name}-tmp.html"), to.with_name(f"{to.name}.html"))
                self.log.info("Feedback for %s released", student)


class LmsArchive(ExtractorPlugin):
    """Of `zip_collect`: takes the archive of an LMS apart, and no archive of a student's in it. nbgrader's own opens
    these too and ends at one that cannot be opened; here `handed_in.take` does, for that student."""

    def extract(self, archive_path: str, extracted_path: str) -> None:
        for file in sorted(path for path in Path(archive_path).rglob("*") if path.is_file()):
            to = Path(extracted_path, file.relative_to(archive_path)).parent
            to.mkdir(parents=True, exist_ok=True)
            if file.suffix not in self.zip_ext:
                shutil.copy(file, to)
                continue
            try:
                unzip(str(file), str(to), zip_ext=self.zip_ext, create_own_folder=True)
                self.log.info("%s was taken apart", file)
            except Exception as error:  # of setuptools, zipfile, tarfile
                self.log.error("%s cannot be taken apart: %s", file, error)


class NamedFiles(FileNameCollectorPlugin):
    """Of `zip_collect`: an LMS names files after people, and the roster knows who that is. The number of the LMS in the
    same name (`number` in `named_regexp`) tells people of one name apart. A student's second file that would get the
    name of the first gets a number; nbgrader's own ends there, for the whole class.

    `named_regexp` is given the path below the folder `extracted`: a student can have a folder of that name too."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen: Counter = Counter()

    @functools.cached_property
    def extracted(self) -> Path:
        return Path(self.parent._format_collect_path(self.parent.extracted_directory))

    @functools.cached_property
    def folders(self) -> dict[tuple[str, str], str]:
        """A name and a number as files have them -> the folder of that student."""
        paths = (str(path.relative_to(self.extracted)) for path in self.extracted.rglob("*") if path.is_file())
        named = {_named(found.groupdict()) for found in map(re.compile(self.named_regexp).match, paths) if found}
        where, of_gradescope = self.parent.coursedir, {one for one in named if self._people(one)}
        with Gradebook(where.db_url, where.course_id) as book:
            found, told = roster.folders(named - of_gradescope, book)
            found |= {one: roster.folder_of(self._people(one), "_".join(one), book) for one in of_gradescope}
        several = (one for one in sorted(of_gradescope) if self._people(one)[1:])
        told += [f"{'_'.join(one)} is of several people: copy submitted/{found[one]} for the others" for one in several]
        for line in told:
            self.log.warning("%s", line)
        return found

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What Gradescope says of each `submission_1234`, in a file beside them; one that a student handed in lies in
        such a folder."""
        found: dict[str, Any] = {}
        for file in sorted(self.extracted.rglob("submission_metadata.yml")):
            if any(re.fullmatch(r"submission_\d+", part) for part in file.relative_to(self.extracted).parts):
                continue
            try:
                # Of this loader all is text: another one takes the number 0123 for 83.
                found |= yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)
            except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
                self.log.error("%s cannot be read, and tells no names: %s", file, error)
        return found

    def _said(self, one: tuple[str, str], key: str) -> Any:
        about = self.metadata.get("_".join(one))
        return about.get(key) if isinstance(about, dict) else None

    def _people(self, one: tuple[str, str]) -> list[dict[str, str]]:
        said = self._said(one, ":submitters")
        people = [person for person in said if isinstance(person, dict)] if isinstance(said, list) else []
        return [{key: roster.clean(text) for key, text in one.items() if isinstance(text, str)} for one in people]

    def _match(self, filename: str) -> dict | None:
        return super()._match(os.path.relpath(filename, self.extracted))

    def collect(self, submitted_file: str) -> dict | None:
        found = super().collect(submitted_file)
        if not found or roster.why_not(found["student_id"], ()):
            return None
        one = _named(found)
        found["student_id"] = self.folders[one]
        with contextlib.suppress(ValueError, OverflowError, AttributeError):
            found["timestamp"] = parse_utc(self._said(one, ":created_at"))
        if found.get("late"):  # Canvas says no more than that
            where = f"submitted/{found['student_id']}/{self.parent.coursedir.assignment_id}/timestamp.txt"
            self.log.warning("Canvas marks %s late, and not how late: write the time into %s", one[0], where)
        name = found["student_id"], found["file_id"], Path(submitted_file).suffix
        self.seen[name] += 1
        if self.seen[name] > 1:
            found["file_id"] += f" ({self.seen[name]})"
        return found


def _named(found: dict) -> tuple[str, str]:
    return found["student_id"], found.get("number") or ""


class Collect(ExchangeCollect):
    def init_src(self) -> None:
        """nbgrader's --before-duedate knows the lesson's due date alone; who has an extension has until its end."""
        super().init_src()
        if self.duedate is None or not self.before_duedate:
            return
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
            found = book.assignment_submissions(self.coursedir.assignment_id)
            until = {one.student.id: self.duedate + one.extension for one in found if one.extension}
        for number, record in enumerate(self.src_records):
            if end := until.get(record["username"]):
                self.src_records[number] = self._last(record, end)

    def _last(self, chosen: dict, end: datetime) -> dict:
        """Of a student's hand-ins the last one that came until `end`; or the one that nbgrader chose."""
        student, lesson = chosen["username"], self.coursedir.assignment_id
        paths = Path(self.inbound_path).glob(f"{glob.escape(student)}+{glob.escape(lesson)}+*")
        records = self._sort_by_timestamp([self._path_to_record(str(path)) for path in paths])
        return next((one for one in records if one["username"] == student and one["timestamp"] <= end), chosen)

    def _path_to_record(self, path: str) -> dict:
        """A name that tells no time is older than any other, and ends nothing."""
        try:
            return super()._path_to_record(path)
        except (ValueError, OverflowError, IndexError):
            name = os.path.basename(path)
            return {"username": name.split("+")[0], "filename": name, "timestamp": parse_utc("1970-01-01 00:00:00 UTC")}

    def do_copy(self, src: str, dest: str, log=None) -> None:
        limits = [1000 * most or math.inf for most in (self.coursedir.max_file_size, self.coursedir.max_dir_size)]
        try:
            for left in copied(Path(src), Path(dest), self.coursedir.ignore, *limits):
                self.log.warning("Not collected: %s", ascii(left))
            handed_in.put_aside_bad_stamp(Path(dest))
        except (OSError, RuntimeError) as error:  # a path too long, folders too deep: one student's
            self.log.error("%s could not be collected whole: %s", ascii(src), error)


def copied(source: Path, to: Path, ignore: Sequence[str], most: float, in_all: float) -> Iterator[str]:
    """Copy regular files, and links as links. Yields what was left out: pipes and the like, and what is too large.

    Students may still write there, so nothing is opened by a path in which a folder could become a link.
    """
    if source.is_symlink():
        to.symlink_to(os.readlink(source))
        return
    to.mkdir()
    for folder, folders, files, here in os.fwalk(source, follow_symlinks=False):
        there = to / Path(folder).relative_to(source)
        folders[:] = [name for name in folders if not _ignored(name, ignore)]
        for name in [*folders, *files]:
            kind = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(kind.st_mode):
                os.symlink(os.readlink(name, dir_fd=here), there / name)
            elif stat.S_ISDIR(kind.st_mode):
                (there / name).mkdir()
            elif not _ignored(name, ignore):
                if not stat.S_ISREG(kind.st_mode) or kind.st_size > min(most, in_all):
                    yield os.path.join(folder, name)
                    continue
                in_all -= kind.st_size
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
                with open(file, "rb") as opened, (there / name).open("xb") as copy:
                    shutil.copyfileobj(opened, copy)


def _ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
