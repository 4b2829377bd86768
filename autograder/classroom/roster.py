"""`python -m autograder roster FILE.csv`: who takes the course, from whatever a university's system writes.

The name of a student's folder in submitted/ is the `id` here. The columns of Canvas, Moodle and Gradescope are known;
so are nbgrader's own. What stands in the gradebook and not in the file stays.
"""

from __future__ import annotations

import argparse
import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nbgrader.api import Gradebook, Student

from autograder.classroom.counted import many
from autograder.classroom.limited import decoded

FIELDS = ("id", "first_name", "last_name", "email", "lms_user_id")
# The field -> columns that may hold it, the first that is there and not empty. Chosen by the first column of all.
LAYOUTS = {
    "Canvas": {
        "id": ("sis login id",),
        "name": ("student", "student name"),
        "email": ("email",),
        "lms_user_id": ("id",),
    },
    "Gradescope": {
        "id": ("sid",),
        "first_name": ("first name",),
        "last_name": ("last name",),
        "name": ("name", "full name"),
        "email": ("email",),
    },
    "nbgrader": {name: (name,) for name in FIELDS},
    "Moodle": {
        "id": ("username", "id number", "email address"),
        "first_name": ("first name",),
        "last_name": ("last name", "surname"),
        "name": ("full name",),
        "email": ("email address",),
        "lms_user_id": ("identifier",),
    },
}
# nbgrader looks for notebooks by patterns, in which `a*` stands for all students whose names begin so, and writes ids
# into pages and scripts
NOT_IN_IDS = "/*?[<>&\"'\\"
NOT_STUDENTS = ("points possible", "student, test", "test student")  # rows of Canvas


class BadRoster(ValueError):
    """The file cannot be read as a list of students."""


@dataclass
class Read:
    layout: str
    students: dict[str, dict[str, str]]
    told: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a CSV of Canvas, Moodle or Gradescope, or with nbgrader's columns")


def main(args: argparse.Namespace) -> int:
    from autograder.classroom.late import course  # nbgrader's settings take a second to load

    try:
        read = students_of(args.file.read_bytes())
        _, book = course()
    except (OSError, BadRoster) as error:
        print(f"{args.file}: {error}")
        return 2
    with book:
        print("\n".join([*read.told, entered(book, read)]))
    return 0


def entered(book: Gradebook, read: Read) -> str:
    """A file that knows students by their e-mail alone, as Moodle's grading worksheet may, is about those who are there
    under another id."""
    before = {one.id: one for one in book.students}
    by_mail = {one.email: one.id for one in before.values() if one.email}
    read.students = {by_mail.get(name, name): fields for name, fields in read.students.items()}
    new = read.students.keys() - before.keys()
    changed = [
        name
        for name, fields in read.students.items()
        if name in before and any((getattr(before[name], key) or "") != value for key, value in fields.items())
    ]
    for name, fields in read.students.items():
        book.update_or_create_student(name, **fields)
    others = sorted(before.keys() - read.students.keys())
    stay = f" Not in the file, and kept: {', '.join(others[:10])}{' ...' * (len(others) > 10)}." if others else ""
    return (
        f"{many(len(read.students), 'student')} of a {read.layout} file: {len(new)} new, {len(changed)} changed.{stay}"
    )


def students_of(data: bytes) -> Read:
    """The students of a CSV, whatever its encoding and its delimiter are."""
    text, told = decoded(data)
    lines = text.lstrip("\N{BYTE ORDER MARK}").splitlines()
    if not lines:
        raise BadRoster("it is empty")
    delimiter = max(",;\t", key=lines[0].count)
    table = csv.reader(lines, delimiter=delimiter)
    header = [name.strip().casefold() for name in next(table)]
    layout = next((name for name, columns in LAYOUTS.items() if set(columns["id"]) & set(header)), None)
    if layout is None:
        asked = ", ".join(f"{columns['id'][0]!r} ({name})" for name, columns in LAYOUTS.items())
        raise BadRoster(f"no column says who a student is; one of these is needed: {asked}")
    students: dict[str, dict[str, str]] = {}
    for number, row in enumerate(table, 2):
        cells = dict(zip(header, map(clean, row)))
        fields = fields_of(cells, LAYOUTS[layout])
        nobody = not any(cells.values()) or (layout == "Canvas" and not fields)  # its row of "Manual Posting"
        if nobody or next(iter(cells.values())).casefold() in NOT_STUDENTS:
            continue
        name = fields.pop("id", "")
        if why := why_not(name, students):
            told.append(f"Line {number} is left out: {why}.")
            continue
        students[name] = fields
    return Read(layout, students, [*told, *alike(students)])


def fields_of(cells: dict[str, str], columns: dict[str, tuple[str, ...]]) -> dict[str, str]:
    found = {}
    for field, names in columns.items():
        if value := next((cells[name] for name in names if cells.get(name)), ""):
            found[field] = value
    whole = found.pop("name", "")
    if whole and "last_name" not in found:
        last, comma, first = whole.partition(",")
        found["first_name"], found["last_name"] = (first.strip(), last.strip()) if comma else split(whole)
    return found


def split(whole: str) -> tuple[str, str]:
    first, _, last = whole.rpartition(" ")
    return first, last


def why_not(name: str, known: Iterable[str]) -> str:
    """Why no student can be called this, or ""."""
    if not name:
        return "it has no id"
    if name in known:
        return f"{name} is there already"
    if name.startswith(".") or not name.isprintable() or {*name} & {*NOT_IN_IDS}:
        return f"{name!a} cannot be an id: one begins with no dot and has none of {' '.join(NOT_IN_IDS)}"
    return ""


def as_id(name: str) -> str:
    """A person's name, fit to be that of a folder: nobody is left out for an apostrophe."""
    return name.translate(dict.fromkeys(map(ord, NOT_IN_IDS), "_"))


def clean(text: str) -> str:
    """One form for every letter: an umlaut from a Mac may be two characters."""
    return unicodedata.normalize("NFC", text).strip()


def alike(names: Iterable[str]) -> list[str]:
    """Names that people take for the same."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(plain(name), []).append(name)
    return [
        f"{' and '.join(map(ascii_of, found))} look alike: is that one student?"
        for found in groups.values()
        if found[1:]
    ]


def plain(name: str) -> str:
    """Without case, blanks and accents."""
    parts = unicodedata.normalize("NFKD", name.casefold())
    return "".join(part for part in parts if part.isalnum())


def ascii_of(name: str) -> str:
    """With its bytes where two names would look the same on a screen."""
    return repr(name) if name == unicodedata.normalize("NFC", name) else ascii(name)


def strangers(folders: Iterable[str], book: Gradebook) -> Iterator[str]:
    """What is to be said about folders of no student on the roster."""
    on_it, by_look = on_roster(book), by_looks(book)
    for name in sorted(set(folders) - on_it.keys()) if on_it else ():
        near = by_look.get(plain(name)) or by_look.get(plain(re.sub(r"_\d+$", "", name)), ())
        yield f"{ascii_of(name)} is not on the roster, and is graded as a student of that name.{_meant(near)}"


def _meant(near: Iterable[str]) -> str:
    names = sorted(map(repr, near))
    if len(names) < 2:
        return f" Is it {names[0]}? Then rename the folder." if names else ""
    return f" {' and '.join(names)} have that name: find out whose it is, and rename the folder to that id."


def folders(named: Iterable[tuple[str, str]], book: Gradebook) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Each name and number ("" where there is none) in an archive of an LMS -> the folder of that student; and what is
    to be said. Nobody's folder is that of another: where neither the number nor the name tells who it is, the folder is
    called after both. What no id may have, as in O'Brien, is _ in the folder of somebody who is not on the roster."""
    named, by_number, by_look = sorted(set(named)), by_numbers(book), by_looks(book)
    sure = {one: name for one in named if (name := _only(by_number.get(one[1], ())))}
    likely = {one: sure.get(one) or _only(by_look.get(plain(one[0]), ())) or as_id(one[0]) for one in named}
    numbers: dict[str, set[str]] = {}
    for one, name in likely.items():
        numbers.setdefault(name, set()).add(one[1])
    found, told = {}, []
    for one in named:
        (name, number), near = one, by_look.get(plain(one[0]), set())
        settled = one in sure or (len(near) < 2 and len(numbers[likely[one]]) < 2)
        found[one] = likely[one] if settled else as_id("_".join(filter(None, one)))
        if number and not settled:
            told.append(
                f"Several people may be {name!r}, and nobody on the roster has the number {number}: collected as "
                f"{found[one]!r}.{_meant(near)} A file for `python -m autograder roster` with the lines "
                f"'id,lms_user_id' and 'ID,{number}' tells it the next time."
            )
    return found, told


def folder_of(people: Iterable[Mapping[str, str]], other: str, book: Gradebook) -> str:
    """Of those who handed in together the first on the roster, by number or e-mail as Gradescope's metadata have them;
    else what the first is called there, or `other`."""
    known = on_roster(book)
    by_mail = {one.email.casefold(): name for name, one in known.items() if one.email}
    ids = [(one.get(":sid") or "", by_mail.get((one.get(":email") or "").casefold(), "")) for one in people]
    found = (name for pair in ids for name in pair if name in known)
    return next(found, "") or next((sid for sid, _ in ids if not why_not(sid, ())), other)


def _only(names: Iterable[str]) -> str:
    """The one name, or "" where there is none and where there are several."""
    return next(iter(names)) if len(names := set(names)) == 1 else ""


def left_over(folders: Iterable[str], book: Gradebook) -> Iterator[str]:
    """Students whose folder was renamed or taken away after it was graded. folders: of all lessons."""
    on_it = on_roster(book)
    known = {one.id for one in book.students if one.submissions}
    gone = sorted(known - on_it.keys() - set(folders)) if on_it else []
    if gone:
        yield (
            f"In the gradebook without a folder, and not on the roster: {', '.join(map(ascii_of, gone))}. "
            "nbgrader db student remove NAME --force takes name and marks out."
        )


def on_roster(book: Gradebook) -> dict[str, Student]:
    """Nobody where no roster was given: such a gradebook knows nobody by more than an id."""
    return {one.id: one for one in book.students if any(getattr(one, field) for field in FIELDS[1:])}


def by_looks(book: Gradebook) -> dict[str, set[str]]:
    """What a folder may be called, as `plain` has it -> the students on the roster who may be meant."""
    found: dict[str, set[str]] = {}
    for name, one in on_roster(book).items():
        for look in filter(None, map(plain, looks(one))):
            found.setdefault(look, set()).add(name)
    return found


def by_numbers(book: Gradebook) -> dict[str, set[str]]:
    """A number in the LMS -> the students on the roster who have it. Moodle writes "Participant 1234"."""
    found: dict[str, set[str]] = {}
    for name, one in on_roster(book).items():
        if number := re.fullmatch(r"\D*(\d+)", one.lms_user_id or "", re.ASCII):
            found.setdefault(number[1], set()).add(name)
    return found


def looks(one: Student) -> list[str]:
    """What a folder of this student may be called. Moodle writes "Ada Lovelace" and Canvas "lovelaceada"."""
    first, last = one.first_name or "", one.last_name or ""
    return [one.id, f"{first}{last}", f"{last}{first}", (one.email or "").partition("@")[0]]
