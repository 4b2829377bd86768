"""`nbgrader collect`, `zip_collect` and `release_feedback`, which end at nobody's folder.

nbgrader's own copies what a link leads to with the rights of the instructor: a student who links a notebook to somebody
else's hands that one in. Here a link in a folder stays a link, and `handed_in.take` then says that it is one; a link in
place of the folder is left out.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import glob
import itertools
import math
import os
import re
import shutil
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from nbgrader.api import Gradebook
from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin
from nbgrader.utils import notebook_hash, parse_utc

from autograder.classroom import export, handed_in, limited, roster


class ReleaseFeedback(ExchangeReleaseFeedback):
    """To those who handed in through the exchange: their secret, which lies where they handed in, leads to a page.

    nbgrader's own reads the secret beside the page, where grading puts nothing that was handed in."""

    def ensure_root(self) -> None:
        """nbgrader's own tells instructors to contact their instructor."""
        if not Path(self.root).exists():
            where = self.coursedir
            pages = where.format_path(where.feedback_directory, "<student>", where.assignment_id)
            self.fail(
                f"Nothing was released, because this course has no exchange: {self.root} does not exist. "
                f"nbgrader generate_feedback puts the pages into {os.path.relpath(pages)}/: give each student theirs. "
                "An exchange elsewhere is named by --Exchange.root=/its/folder."
            )
        super().ensure_root()

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
    """Of `zip_collect`: takes the archive of an LMS apart, and no archive of a student's, in it or beside it: whoever
    handed one in could name files after others. nbgrader's own opens these too; here `handed_in.take` does, for that
    student. What cannot be taken out is named, and the rest is taken out all the same."""

    missing = 0  # files of archives

    def extract(self, archive_path: str, extracted_path: str) -> None:
        shut = []
        for file in sorted(path for path in Path(archive_path).rglob("*") if path.is_file()):
            where = file.relative_to(archive_path)
            to = Path(extracted_path, where).parent
            to.mkdir(parents=True, exist_ok=True)
            packed = file.suffix in self.zip_ext
            if packed and not self.parent.collector_plugin_inst.is_hand_in(str(where.with_suffix(".zip"))):
                self._take_apart(file, to / file.stem)
                continue
            shutil.copy(file, to / free(file.name, lambda name, to=to: (to / name).exists()))
            shut += [ascii(file.name)] * packed
        if shut:
            self.log.info("Named as students' files are, and not opened: %s", ", ".join(shut))

    def _take_apart(self, archive: Path, to: Path) -> None:
        most, _ = limits(self.parent.coursedir)
        try:
            with zipfile.ZipFile(archive) as opened:
                entries = [entry for entry in opened.infolist() if not entry.is_dir()]
                if (in_all := sum(entry.file_size for entry in entries)) > MOST:
                    gb = [number / 1e9 for number in (in_all, MOST)]
                    raise ValueError("it unpacks to {:.0f} GB, and the limit is {:.0f}".format(*gb))
                for entry in entries:
                    try:
                        if entry.file_size > most:
                            raise ValueError(f"it has {entry.file_size / 1e6:.0f} MB")
                        _take_out(opened, entry, to)
                    except Exception as error:
                        self._is_missing(f"{entry.filename!a} in {archive}", error)
            self.log.info("%s was taken apart", archive)
        except Exception as error:
            self._is_missing(str(archive), error)

    def _is_missing(self, what: str, error: Exception) -> None:
        self.missing += 1
        self.log.error("%s cannot be taken apart: %s", what, ascii(str(error)))


MOST = 20 << 30  # bytes that an archive unpacks to: a thousand hand-ins of 20 MB


def _take_out(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, to: Path) -> None:
    *folders, name = entry.filename.split("/")
    if not name or {"", ".", ".."} & {*folders, name}:
        raise ValueError("its name leads elsewhere")
    folder = to.joinpath(*map(short, folders))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / free(name, lambda name: (folder / name).exists())
    try:
        with archive.open(entry) as packed, path.open("xb") as file:
            shutil.copyfileobj(packed, file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def short(name: str) -> str:
    """A name that a file can have, also with a number behind it; its end tells the kind of file, and in Moodle's
    folders the student's number."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    data = os.fsencode(name)
    half = LONGEST // 2
    return name if len(data) <= LONGEST else data[:half].decode(errors="ignore") + data[-half:].decode(errors="ignore")


LONGEST = 200  # bytes of 255


def free(name: str, taken: Callable[[str], bool]) -> str:
    """`name`, with a number where it is taken."""
    stem, suffix = os.path.splitext(short(name))
    numbered = (f"{stem} ({number}){suffix}" for number in itertools.count(2))
    return next(one for one in itertools.chain([stem + suffix], numbered) if not taken(one))


def install() -> None:
    """`zip_collect` ends with 1 where something of an archive is missing."""
    collect = ZipCollectApp.process_extracted_files

    def process_extracted_files(app: ZipCollectApp) -> None:
        collect(app)
        if missing := app.extractor_plugin_inst.missing:
            app.fail("%s missing: see above", "1 file is" if missing == 1 else f"{missing} files are")

    ZipCollectApp.process_extracted_files = process_extracted_files


class NamedFiles(FileNameCollectorPlugin):
    """Of `zip_collect`: an LMS names files after people, and the roster knows who that is. The number of the LMS in the
    same name (`number` in `named_regexp`) tells people of one name apart. Of a student's files of one name the one that
    lies in the fewest folders keeps it, and the others get numbers; nbgrader's own ends there, for the whole class.

    `named_regexp` is given the path below the folder `extracted`: a student can have a folder of that name too."""

    def is_hand_in(self, path: str) -> bool:
        """Whether a name tells the student: by a number of the LMS, by an id that is known, or as a regular expression
        of one's own has it. The archives of Moodle and Gradescope may have names that begin in the same way."""
        found = re.match(self.named_regexp, path)
        return bool(found) and (found.groupdict().get("number", "") is not None or found["student_id"] in self.known)

    @functools.cached_property
    def known(self) -> set[str]:
        with Gradebook(self.parent.coursedir.db_url, self.parent.coursedir.course_id) as book:
            return {student.id for student in book.students}

    @functools.cached_property
    def extracted(self) -> Path:
        return Path(self.parent._format_collect_path(self.parent.extracted_directory))

    @functools.cached_property
    def matched(self) -> dict[str, re.Match]:
        """Of each file that may be a hand-in what its path tells."""
        paths = (str(path.relative_to(self.extracted)) for path in sorted(self.extracted.rglob("*")) if path.is_file())
        every = ((path, re.match(self.named_regexp, path)) for path in paths if Path(path).suffix in self.valid_ext)
        return {path: found for path, found in every if found}

    @functools.cached_property
    def folders(self) -> dict[tuple[str, str], str]:
        """A name and a number as files have them -> the folder of that student."""
        named = {_named(found.groupdict()) for found in self.matched.values()}
        where, of_gradescope = self.parent.coursedir, {one for one in named if self._people(one)}
        with Gradebook(where.db_url, where.course_id) as book:
            found, told = roster.folders(named - of_gradescope, book)
            meant = {one: roster.folder_of(self._people(one), "_".join(one), book) for one in of_gradescope}
        times = Counter([*found.values(), *meant.values()])
        for one, name in sorted(meant.items()):
            other = "_".join(one)
            found[one] = name if times[name] == 1 else other
            if times[name] > 1:
                told.append(
                    f"{other} is of {name!a} by what Gradescope says, and so is another: collected as {other!a}. Find "
                    "out whose it is, and rename the folder to that id."
                )
            if self._people(one)[1:]:
                told.append(f"{other} is of several people: copy submitted/{found[one]} for the others")
        for line in told:
            self.log.warning("%s", line)
        return found

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """Path below `extracted` -> what the file is called in its student's folder. What a Mac or Jupyter put beside
        files is left out where there is something else."""
        by_student: dict[str, list[tuple[bool, int, str]]] = {}
        for path, found in self.matched.items():
            inner = [*path[found.end("student_id") :].split("/")[1:-1], found["file_id"]]
            one = limited.hidden("/".join(inner)), len(inner), path
            by_student.setdefault(self.folders[_named(found.groupdict())], []).append(one)
        names: dict[str, str] = {}
        for student, files in by_student.items():
            files.sort()
            given: dict[str, str] = {}
            for path in [path for is_hidden, _, path in files if not is_hidden] or [path for *_, path in files]:
                wanted = short(self.matched[path]["file_id"] + Path(path).suffix)
                names[path] = name = free(wanted, given.__contains__)
                given[name] = path
                if name != wanted:
                    said = "%s: %a was taken for %a, and %a is kept as %a"
                    self.log.warning(said, student, given[wanted], wanted, path, name)
        return names

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
        found, path = super().collect(submitted_file), os.path.relpath(submitted_file, self.extracted)
        if not found or path not in self.names:
            return None
        one = _named(found)
        if why := roster.why_not(self.folders[one], ()):
            self.log.error("%a is not collected: %s", path, why)
            self.parent.extractor_plugin_inst.missing += 1
            return None
        found["student_id"], found["file_id"] = self.folders[one], self.names[path]
        with contextlib.suppress(ValueError, OverflowError, AttributeError):
            found["timestamp"] = parse_utc(self._said(one, ":created_at"))
        if found.get("late"):  # Canvas says no more than that
            where = f"submitted/{found['student_id']}/{self.parent.coursedir.assignment_id}/timestamp.txt"
            self.log.warning("Canvas marks %s late, and not how late: write the time into %s", one[0], where)
        return found


def _named(found: dict) -> tuple[str, str]:
    return found["student_id"], found.get("number") or ""


class Collect(ExchangeCollect):
    """Everybody writes into the exchange, whatever and under any name: what is wrong with one costs nobody else."""

    def init_src(self) -> None:
        """nbgrader's --before-duedate knows the lesson's due date alone; who has an extension has until its end."""
        super().init_src()
        ends: dict[str, datetime] = {}
        if self.duedate is not None and self.before_duedate:
            with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
                found = book.assignment_submissions(self.coursedir.assignment_id)
                ends = {one.student.id: self.duedate + one.extension for one in found if one.extension}
        by_student: dict[str, list[dict]] = {}
        for record in self._records():
            by_student.setdefault(record["username"], []).append(record)
        self.src_records = [self._chosen(records, ends) for records in by_student.values()]

    def _records(self) -> Iterator[dict]:
        """Of each folder that was handed in. Whoever writes there can make links, pipes and names that act."""
        student, lesson = self.coursedir.student_id or "*", self.coursedir.assignment_id
        for path in sorted(glob.glob(os.path.join(glob.escape(self.inbound_path), f"{student}+{lesson}+*"))):
            record = self._path_to_record(path)
            name, why = record["filename"], roster.why_not(record["username"], ())
            if not why and not name.isprintable():
                why = "its name is not printable"
            if not why and (kind := handed_in.kind(Path(path))) != "a folder":
                why = f"it is {kind}, and no folder"
            if why:
                self.log.warning("Left out: %a in the exchange: %s", name, why)
            else:
                yield record

    def _chosen(self, records: list[dict], ends: dict[str, datetime]) -> dict:
        """Of a student's hand-ins the last; before a due date the last on time, where there is one."""
        records = self._sort_by_timestamp(records)
        if self.duedate is None or not self.before_duedate:
            return records[0]
        end = ends.get(records[0]["username"], self.duedate)
        return next((one for one in records if one["timestamp"] <= end), records[0])

    def _path_to_record(self, path: str) -> dict:
        """A name that tells no time is older than any other, and ends nothing."""
        try:
            return super()._path_to_record(path)
        except (ValueError, OverflowError, IndexError):
            name = os.path.basename(path)
            return {"username": name.split("+")[0], "filename": name, "timestamp": parse_utc("1970-01-01 00:00:00 UTC")}

    def copy_files(self) -> None:
        """One after the other: whatever raises costs that student alone."""
        records, where = self.src_records, self.coursedir
        if not records:
            super().copy_files()
        for record in records:
            self.src_records = [record]
            there = Path(where.format_path(where.submitted_directory, record["username"], where.assignment_id))
            try:
                if there.is_symlink():  # nbgrader neither replaces one nor stops at what is behind it
                    there.unlink()
                super().copy_files()
            except (OSError, RuntimeError) as error:
                self.log.error("%a could not be collected: %s", record["filename"], ascii(error))
        self.src_records = records

    def do_copy(self, src: str, dest: str, log=None) -> None:
        try:
            for left in copied(Path(src), Path(dest), self.coursedir.ignore, *limits(self.coursedir)):
                self.log.warning("Not collected: %a", left)
        except (OSError, RuntimeError) as error:  # a path too long, folders too deep
            self.log.error("%a could not be collected whole: %s", src, ascii(error))
        finally:
            if said := handed_in.put_aside_bad_stamp(Path(dest)):
                self.log.warning("%s: %s", Path(dest).parent.name, said)


def limits(coursedir: CourseDirectory) -> tuple[float, float]:
    """Bytes of a file and of a hand-in."""
    return 1000 * coursedir.max_file_size or math.inf, 1000 * coursedir.max_dir_size or math.inf


def copied(source: Path, to: Path, ignore: Sequence[str], most: float, in_all: float) -> Iterator[str]:
    """Copy regular files, and links in the folder as links. Yields what was left out: pipes and the like, and what is
    too large.

    Students may still write there. So nothing is opened by a path in which a folder could become a link or a pipe, and
    of a file that grows no more is read than was counted.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

    def within(here: int, folder: str, there: Path) -> Iterator[str]:
        nonlocal in_all
        names = [name for name in sorted(os.listdir(here)) if not _ignored(name, ignore)]
        kinds = {name: os.stat(name, dir_fd=here, follow_symlinks=False) for name in names}
        for name in sorted(names, key=lambda name: stat.S_ISDIR(kinds[name].st_mode)):  # files first
            kind, path = kinds[name], os.path.join(folder, name)
            if stat.S_ISLNK(kind.st_mode):
                os.symlink(os.readlink(name, dir_fd=here), there / name)
            elif stat.S_ISDIR(kind.st_mode):
                (there / name).mkdir()
                with _opened(name, flags | os.O_DIRECTORY, here) as inner:
                    yield from within(inner, path, there / name)
            elif not stat.S_ISREG(kind.st_mode) or kind.st_size > min(most, in_all):
                yield path
            else:
                in_all -= kind.st_size
                with _opened(name, flags, here) as file, (there / name).open("xb") as copy:
                    left = kind.st_size
                    while left and (data := os.read(file, min(left, 1 << 20))):
                        copy.write(data)
                        left -= len(data)

    to.mkdir()
    with _opened(source, flags | os.O_DIRECTORY) as top:
        yield from within(top, str(source), to)


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    number = os.open(path, flags, dir_fd=folder)
    try:
        yield number
    finally:
        os.close(number)


def _ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
