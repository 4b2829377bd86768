"""The glossary explains a word once, and a reader finds it by its letters. The site itself takes longer to build."""

import re

from autograder.classroom.lessons import COURSE


def test_every_term_stands_once_and_in_its_place():
    lines = (COURSE / "book" / "glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [entry[1].lower() for line in lines if (entry := re.match(r"\*\*(.+?)\*\*", line))]
    assert len(terms) > 60
    assert terms == sorted(set(terms))
