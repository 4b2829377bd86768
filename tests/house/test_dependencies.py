"""pyproject.toml, requirements.txt, constraints.txt, environment.yml and the Dockerfile say the same."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COURSE = Path(__file__).resolve().parents[2]


def pins(name: str) -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in (COURSE / name).read_text().splitlines()]
    found = [line.split("==") for line in lines if line]
    return {canonicalize_name(package): version for package, version in found}


def ranges() -> dict[str, Requirement]:
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    named = list(project["dependencies"])
    for extra in ("lab", "grading", "test"):
        named += project["optional-dependencies"][extra]
    found = {canonicalize_name(Requirement(line).name): Requirement(line) for line in named}
    return {name: wanted for name, wanted in found.items() if name != project["name"]}


def test_requirements_pin_exactly_what_pyproject_names():
    assert set(pins("requirements.txt")) == set(ranges())


def test_every_pin_lies_in_its_range():
    outside = [f"{n}=={v}" for n, v in pins("requirements.txt").items() if not ranges()[n].specifier.contains(v)]
    assert not outside


def test_the_pair_of_torch_and_triton_is_the_one_that_was_proven():
    pinned = pins("requirements.txt")
    assert (pinned["torch"], pinned["triton"]) == ("2.13.0", "3.7.1")
    assert tuple(map(int, pinned["numpy"].split(".")[:2])) < (2, 5)


def test_constraints_pin_the_rest_and_nothing_twice():
    assert not set(pins("constraints.txt")) & set(pins("requirements.txt"))
    local = [f"{n}=={v}" for n, v in pins("constraints.txt").items() if "+" in v or not re.match(r"\d", v)]
    assert not local, "a local version exists on one machine only"


def test_everything_the_pinned_packages_need_is_pinned():
    pinned = pins("requirements.txt") | pins("constraints.txt")
    installed = {canonicalize_name(d.name): d for d in metadata.distributions()}
    for name, version in pins("requirements.txt").items():
        here = installed[name].version.partition("+")[0] if name in installed else "missing"
        if here != version:
            pytest.skip(f"this environment has {name} {here}, not the pinned {version}")
    loose = set()
    for name in pinned:
        needs = map(Requirement, (installed[name].requires or []) if name in installed else [])
        wanted = {canonicalize_name(r.name) for r in needs if not r.marker or r.marker.evaluate({"extra": ""})}
        # torch pins its own CUDA libraries exactly.
        loose |= {n for n in wanted - set(pinned) if not n.startswith(("nvidia-", "cuda-"))}
    assert not loose - {"pip"}


def of_the_book() -> dict[str, Requirement]:
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    return {
        canonicalize_name(Requirement(line).name): Requirement(line)
        for line in project["optional-dependencies"]["book"]
    }


def test_the_site_s_tools_are_pinned_once_and_in_their_ranges():
    pinned = pins("book/constraints.txt")
    assert set(of_the_book()) <= set(pinned)
    assert not [f"{n}=={pinned[n]}" for n, r in of_the_book().items() if not r.specifier.contains(pinned[n])]
    assert not set(pinned) & set(pins("requirements.txt") | pins("constraints.txt"))


def test_everything_the_site_s_tools_need_is_pinned():
    pinned = pins("requirements.txt") | pins("constraints.txt") | pins("book/constraints.txt")
    installed = {canonicalize_name(d.name): d for d in metadata.distributions()}
    if missing := sorted(set(of_the_book()) - set(installed)):
        pytest.skip(f"the extra `book` is not installed ({', '.join(missing)}); `make book` does that")
    loose = set()
    for name in pins("book/constraints.txt"):
        assert installed[name].version == pinned[name], name
        needs = [
            r
            for r in map(Requirement, installed[name].requires or [])
            if not r.marker or r.marker.evaluate({"extra": ""})
        ]
        loose |= {canonicalize_name(r.name) for r in needs} - set(pinned)
    assert not loose


def test_every_pin_installs_on_the_oldest_python_we_promise():
    """On 3.11.0: distributions freeze early releases (Debian 12 has 3.11.2)."""
    pinned = pins("requirements.txt") | pins("constraints.txt") | pins("book/constraints.txt")
    too_new = []
    for found in metadata.distributions():
        if pinned.get(canonicalize_name(found.name)) == found.version:
            needs = Requirement(f"python{(found.metadata['Requires-Python'] or '').replace(' ', '')}").specifier
            too_new += [] if needs.contains("3.11.0") else [f"{found.name} {found.version}: {needs}"]
    assert not too_new


def test_environment_yml_is_python_and_pip_and_those_files():
    text = (COURSE / "environment.yml").read_text()
    python = re.search(r"- python (\S+)", text).group(1)
    least = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]["requires-python"]
    assert python.split(",")[0] == least
    assert re.findall(r"^ {6}- (.*)$", text, re.MULTILINE) == ["-r requirements.txt", "-c constraints.txt"]


def test_the_dockerfile_copies_what_exists_and_installs_the_pins():
    text = (COURSE / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (COURSE / source).exists(), source
    assert "-r requirements.txt -c constraints.txt" in text
    version = re.search(r"^FROM python:(\S+?)-slim", text, re.MULTILINE).group(1)
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    assert Requirement(f"python{project['requires-python']}").specifier.contains(version)


def test_the_citation_names_this_version_and_licence():
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    said = dict(re.findall(r"^(\w+): (.*)$", (COURSE / "CITATION.cff").read_text(), re.MULTILINE))
    assert (said["version"], said["license"]) == (project["version"], project["license"])
