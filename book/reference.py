"""What is looked up: the glossary, the kernels, what lessons import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat

from autograder.classroom.lessons import COURSE, Lesson
from book.markup import code, container, plain, write
from book.tiles import pictured

BOOK = COURSE / "book"


# Glossary


def glossary(out: Path) -> dict[str, str]:
    """Writes the page; returns phrase -> term."""
    found, phrases = [], {}
    for line in (BOOK / "glossary.md").read_text(encoding="utf-8").splitlines():
        entry = re.match(r"\*\*(.+?)\*\*(?: \((.+?)\))?: (.+)", line)
        if entry:
            found.append((entry[1], entry[3]))
            phrases |= dict.fromkeys([entry[1], *(entry[2] or "").split(", ")], entry[1])
    phrases.pop("", None)
    body = "\n\n".join(f"{term}\n  {said}" for term, said in sorted(found, key=lambda e: e[0].lower()))
    intro = "Words of the lessons, each in a plain sentence. The first use on a page leads here."
    write(out / "glossary.md", f"# Glossary\n\n{intro}\n\n:::{{glossary}}\n{body}\n:::")
    return dict(sorted(phrases.items(), key=lambda e: -len(e[0])))


# Kernels

KERNELS = COURSE / "course_lib" / "kernels"
NOTES = COURSE / "benchmarks" / "notes"
TAUGHT = {  # family -> its lesson
    "pointwise": "00_start",
    "softmax": "01_roofline",
    "matmul": "01_roofline",
    "attention": "04_flash",
    "one_pass": "04_flash",
    "linear_gelu": "05_mlp",
    "mlp": "05_mlp",
    "add_norm": "05_mlp",
    "dropout": "05_mlp",
    "rope": "06_rope",
    "mx": "07_mx",
}


def write_kernels(out: Path) -> None:
    families: dict[str, list[Path]] = {}
    for path in sorted(KERNELS.rglob("*.py")):
        if path.parent != KERNELS or path.name != "__init__.py":
            families.setdefault(path.relative_to(KERNELS).parts[0].removesuffix(".py"), []).append(path)
    notes = {path.stem: path for path in sorted(NOTES.glob("*.md"))}
    for family, paths in families.items():
        start = opened(family, paths)
        lesson = f"Taught in lesson [{TAUGHT[family][:2]}](/{TAUGHT[family]}/index.md). " if family in TAUGHT else ""
        noted = f"[What was tried](#notes-{family}) stands below." if family in notes else ""
        parts = [f"# `{family}`", lesson + noted, pictured(family, out), *annotated(start)]
        parts += (
            [f"(notes-{family})=", demoted(notes.pop(family).read_text(encoding="utf-8"))] if family in notes else []
        )
        if others := [path for path in paths if path != start]:
            listing = "\n".join(f"{path.name} <{path.stem}>" for path in others)
            parts.append(f"## Its other files\n\n```{{toctree}}\n:maxdepth: 1\n\n{listing}\n```")
        name = f"{family}/index" if len(paths) > 1 else family
        write(out / "kernels" / f"{name}.md", "\n\n".join(filter(None, parts)))
        for path in others:
            text = [f"# `{family}/{path.name}`", *annotated(path)]
            write(out / "kernels" / family / f"{path.stem}.md", "\n\n".join(text))
    for name, path in notes.items():
        write(out / "kernels" / f"notes-{name}.md", path.read_text(encoding="utf-8"))
    write(out / "kernels" / "index.md", overview(families, notes))


def overview(families: dict[str, list[Path]], notes: dict[str, Path]) -> str:
    """Every family with what it says of itself: first what lessons teach, in their order, then what kernels share."""
    pages = {family: f"{family}/index" if len(paths) > 1 else family for family, paths in families.items()}

    def line(family: str) -> str:
        lesson = TAUGHT.get(family)
        where = f" Lesson [{lesson[:2]}](/{lesson}/index.md)." if lesson else ""
        return f"- [`{family}`]({pages[family]}.md): {first_paragraph(opened(family, families[family]))}{where}"

    taught = sorted(TAUGHT.keys() & families.keys(), key=list(TAUGHT).index)
    titles = {name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, path in notes.items()}
    listing = "\n".join([*pages.values(), *(f"notes-{name}" for name in notes)])
    parts = [
        "# Kernels",
        "The reference kernels, each beside its own comments, and what was tried on the way to it.",
        "## What lessons teach",
        "\n".join(map(line, taught)),
        "## What kernels share",
        "\n".join(line(family) for family in families if family not in TAUGHT),
        "## Notes on measuring",
        "\n".join(f"- [{title}](notes-{name}.md)" for name, title in titles.items()),
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listing}\n```",
    ]
    return "\n\n".join(parts)


def opened(family: str, paths: list[Path]) -> Path:
    """The file whose page a family begins with."""
    return next((path for path in paths if path.stem in (family, "__init__")), paths[0])


def demoted(text: str) -> str:
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


def annotated(path: Path) -> list[str]:
    """What a module says about itself, then docstrings and comments, each beside the code that it explains."""
    source = path.read_text(encoding="utf-8")
    parsed, lines = ast.parse(source), source.split("\n")
    strings = {}  # first line of a docstring -> its last line and its text
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            strings[node.body[0].lineno] = (node.body[0].end_lineno, ast.get_docstring(node))
    tops = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) for node in parsed.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip
    pairs, said, kept = [], [], []

    def close():
        body = "\n".join(kept).strip("\n")
        if said or body:
            pairs.append(("\n\n".join(said), body))
        said.clear(), kept.clear()

    head = ast.get_docstring(parsed)
    number = parsed.body[0].end_lineno + 1 if head else 1
    while number <= len(lines):
        line = lines[number - 1]
        if number in strings:
            end, text = strings[number]
            said.append(plain(text))
            number = end
        elif line.strip().startswith("# ") and "fmt:" not in line:
            if any(k.strip() for k in kept):
                close()
            words = [line.strip()[2:]]
            while lines[number].strip().startswith("# "):
                words.append(lines[number].strip()[2:])
                number += 1
            said.append(plain("\n".join(words)))
        else:
            if number in tops and any(k.strip() for k in kept):
                close()
            kept.append(line.removesuffix("  # fmt: skip"))
        number += 1
    close()
    return [plain(head or ""), *(pair(words, body) for words, body in pairs)]


def pair(words: str, body: str) -> str:
    parts = [f":::{{container}} said\n{words}\n:::"] if words else []
    parts += [f":::{{container}} source\n{code(body)}\n:::"] if body else []
    return container("pair" if words and body else "alone", "\n".join(parts))


# What lessons import


def api(lessons: list[Lesson]) -> str:
    """Every name of course_lib that a lesson imports or reaches through a module, with its docstring."""
    used: dict[str, set[str]] = {}
    for lesson in lessons:
        cells = nbformat.read(lesson.solution, 4).cells
        source = "\n".join(c.source for c in cells if c.cell_type == "code")
        modules = {}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_lib"):
                for name in node.names:
                    module = f"{node.module}.{name.name}"
                    if module_file(module):
                        modules[name.asname or name.name] = module
                    else:
                        used.setdefault(node.module, set()).add(name.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                used.setdefault(modules[node.value.id], set()).add(node.attr)
    intro = "Every function and class that a lesson uses, by module, with what it says about itself."
    parts = ["# course_lib: what lessons import", intro]
    for module in sorted(used):
        parts += [f"## `{module}`", first_paragraph(module_file(module))]
        entries = [entry(module, name) for name in sorted(used[module])]
        parts += [e for e in entries if e]
    return "\n\n".join(parts)


def module_file(module: str) -> Path | None:
    base = COURSE.joinpath(*module.split("."))
    found = [p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()]
    return found[0] if found else None


def first_paragraph(path: Path) -> str:
    return plain((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0])


def entry(module: str, name: str) -> str:
    node = defined(module, name)
    if node is None:
        return ""
    if isinstance(node, ast.FunctionDef):
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        head = f"{name}({parameters(node.args)}){result}"
    else:
        head = f"class {name}"
    return f"### `{name}`\n\n{container('signature', code(head))}\n\n{plain(ast.get_docstring(node) or '')}"


def parameters(given: ast.arguments) -> str:
    """Arguments as the formatter writes them: `x: int = 3`, where `ast.unparse` has `x: int=3`."""

    def one(arg: ast.arg, default: ast.expr | None) -> str:
        between = " = " if arg.annotation else "="
        return ast.unparse(arg) + (between + ast.unparse(default) if default else "")

    placed = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(placed) - len(given.defaults)) + given.defaults
    parts = [one(*pair) for pair in zip(placed, defaults)]
    if given.posonlyargs:
        parts.insert(len(given.posonlyargs), "/")
    if given.vararg or given.kwonlyargs:
        parts.append(f"*{ast.unparse(given.vararg) if given.vararg else ''}")
    parts += [one(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults)]
    return ", ".join(parts + ([f"**{ast.unparse(given.kwarg)}"] if given.kwarg else []))


def defined(module: str, name: str):
    """The function or class that a name of a module is; packages pass names on from their files."""
    path = module_file(module)
    body = ast.parse(path.read_text(encoding="utf-8")).body if path else []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                    prefix = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                    target = f"{prefix}.{node.module}" if node.level else node.module
                    return defined(target, alias.name) if target.startswith("course_lib") else None
    return None
