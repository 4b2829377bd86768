"""`python -m autograder execute`: run lessons on this machine and keep their outputs.

With `--missing` only cells without output take theirs from this run, and each says so where the machine is another one
than that of the lesson's other outputs: numbers of two machines must not stand on one page as those of one.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from copy import deepcopy
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.classroom import lessons
from autograder.classroom.lessons import COURSE
from course_lib.places import environment

CELL_TIMEOUT_S = 900  # the slowest cells compile or tune a kernel for every size they measure
WIDGET = "application/vnd.jupyter.widget-view+json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", nargs="?", default="", help="01_roofline or roofline; all of them without it")
    parser.add_argument("--missing", action="store_true", help="keep what outputs there are, and add the others")


def main(args: argparse.Namespace) -> int:
    for lesson in lessons.find(COURSE, args.lesson):
        began = time.monotonic()
        before = lessons.refresh(lesson)
        ran = deepcopy(before)
        ran.metadata.pop("speed_of_light", None)
        try:
            run(ran, lesson.script.parent)
        except CellExecutionError:
            if args.missing:  # what came before is kept
                write(lesson, filled(before, ran))
            raise
        record(ran)
        write(lesson, filled(before, ran) if args.missing else ran)
        print(f"{lesson.unit}: ran in {time.monotonic() - began:.0f} s on {this_machine().name}", flush=True)
    return 0


def write(lesson: lessons.Lesson, notebook: NotebookNode) -> None:
    lessons.write_if_changed(lesson.solution, lessons.to_text(notebook).encode())


def filled(before: NotebookNode, ran: NotebookNode) -> NotebookNode:
    """`before`, and where it has no output that of `ran`, with a line for the machine if it is another one."""
    notes = before.metadata.get("speed_of_light")
    here = ran.metadata.get("speed_of_light", {"machine": str(this_machine().name)})
    for cell, new in zip(before.cells, ran.cells, strict=True):
        if cell.cell_type != "code" or cell.outputs or any(out.output_type == "error" for out in new.outputs):
            continue
        cell.outputs, cell.execution_count = new.outputs, new.execution_count
        if cell.outputs and notes and notes["machine"] != here["machine"]:
            words = f"Output of an {here['machine']}; others of this lesson: {notes['machine']}."
            cell.outputs.append(new_output("display_data", {"text/markdown": f"*{words}*", "text/plain": words}))
    if "meaning" in here:  # the lesson ran to its end
        stays = {key: notes[key] for key in ("machine", "tier") if key in (notes or {})}
        before.metadata["speed_of_light"] = here | stays
    return before


def run(notebook: NotebookNode, folder: Path, allow_errors: bool = False) -> NotebookNode:
    """Execute in place with a fresh kernel of this python, in the lesson's own folder; outputs come back clean."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        allow_errors=allow_errors,
        kernel_name="python3",
        store_widget_state=False,  # ids that change with every run; a widget's still figure stays
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment())
    clean(notebook)
    return notebook


def record(notebook: NotebookNode) -> None:
    """Note what the code meant that made these outputs, and where: without a GPU no speed is settled there."""
    machine = this_machine()
    notebook.metadata["speed_of_light"] = {
        "machine": str(machine.name),
        "meaning": lessons.meaning(notebook),
        "tier": machine.tier,
    }


def this_machine():
    from course_lib import device  # chooses the tier of this process, so only when a lesson was run

    return device.machine()


def clean(notebook: NotebookNode) -> None:
    """Drop what means nothing to a reader: live widgets (stills stay), colours, addresses, paths of this machine."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for out in cell.outputs:
                out.get("data", {}).pop(WIDGET, None)
            kept = [out for out in cell.outputs if out.get("data", True)]
            cell.outputs = [clean_output(out) for out in joined(kept)]
    lessons.tidy(notebook)


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream as one, so that the split does not depend on when the kernel flushed."""
    result: list[NotebookNode] = []
    for out in outputs:
        if out.output_type == "stream" and result and result[-1].get("name") == out.name:
            result[-1].text += out.text
        else:
            result.append(out)
    return result


def clean_output(output: NotebookNode) -> NotebookNode:
    if "metadata" in output:  # an image's words for those who cannot see it stay
        output.metadata = NotebookNode({k: v for k, v in output.metadata.items() if k == "image/png"})
    if output.output_type == "stream":
        output.text = clean_text(output.text)
    elif output.output_type == "error":
        output.evalue = clean_text(output.evalue)
        output.traceback = [clean_text(line) for line in output.traceback]
    else:
        for kind, value in output.data.items():
            if isinstance(value, str) and (kind.startswith("text/") or kind == "image/svg+xml"):
                output.data[kind] = clean_text(value)
    return output


def clean_text(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"[^\s\"'()]*/ipykernel_\d+/\d+\.py", "<cell>", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", text)
    text = re.sub(r"[^\s\"'()]*/site-packages/", "site-packages/", text)
    for path, instead in ((str(COURSE) + "/", ""), (str(COURSE), "."), (str(Path.home()), "~")):
        if path != "/":
            text = text.replace(path, instead)
    return text.replace(tempfile.gettempdir() + "/", "<temporary>/")
