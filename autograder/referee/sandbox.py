"""The room in which a submission runs: bubblewrap, no network, read-only system, another uid, limits.

Every sandbox has a user namespace of its own, also when the grader is root: without one the kernel's keyring would
carry data from one sandbox to the next. As root, bubblewrap makes the mounts, then the uid is dropped, then the new
namespace is entered. As an ordinary user bubblewrap does all of it. The program inside is process 1, and cannot make
another namespace: in one of its own it would be root, and could mount memory that nobody counts.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NOBODY = 65534
COURSE = Path(__file__).resolve().parents[2]
COURSE_LIB = COURSE / "course_lib"
INSIDE = COURSE / "autograder" / "inside"  # all that a sandbox holds of the autograder
ANSWERS = ("kernels", "parallel")  # folders of course_lib that hold reference solutions
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SETTINGS = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
INSTALL = (
    "The referee runs submissions in bubblewrap, which is not usable here: {}. "
    "On Debian or Ubuntu: apt-get install bubblewrap"
)


class NoSandbox(RuntimeError):
    """Grading is refused: submissions would run unprotected."""


@dataclass(frozen=True)
class Limits:
    processes: int = 512  # threads count too
    file_bytes: int = 1 << 28
    open_files: int = 1024
    tmp_bytes: int = 1 << 30  # of /tmp, and of /dev/shm
    memory_bytes: int | None = 16 << 30  # address space; None on a GPU, where CUDA reserves more than it uses
    memory: int = 8 << 30  # in use, by all processes together and in temporary files: the watchdog counts


def command(
    program: Sequence[str],
    gpu: int | None = None,
    limits: Limits = Limits(),
    answers: bool = False,
    hides: Sequence[str] = (),
) -> list[str]:
    """The command line that runs `program` as process 1 of a fresh sandbox; open descriptors are passed on.

    Of the course it holds course_lib and `autograder/inside`, read-only and under their own paths. `answers`: with the
    folders of course_lib that hold reference solutions. `hides`: packages, "torch._dynamo", whose folders are empty,
    and modules, whose files are.
    """
    as_root = os.geteuid() == 0
    line = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    line += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    if as_root:
        line += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
    else:
        line += ["--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    line += _places(limits.tmp_bytes) + _python() + _course_lib(answers) + _autograder() + _hidden(hides)
    line += _gpu(gpu) if gpu is not None else []
    line += ["--remount-ro", "/dev", "--remount-ro", "/"]  # both are memory without a limit otherwise
    line += [part for name, value in _environment().items() for part in ("--setenv", name, value)]
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
    drop += ["--no-new-privs", "unshare", "--user", "--map-current-user", "--"]
    behind_a_filter = [sys.executable, "-I", "-S", str(INSIDE / "seccomp.py"), *program]
    return [*line, "--chdir", "/tmp", "--", *(drop if as_root else []), *_prlimit(limits), *behind_a_filter]


@cache
def require() -> None:
    """Raise NoSandbox unless a sandbox starts and is one."""
    missing = [name for name in ("bwrap", "setpriv", "unshare", "prlimit") if not shutil.which(name)]
    if missing:
        raise NoSandbox(INSTALL.format("missing " + ", ".join(missing)))
    tried = subprocess.run(command(["id", "-u"]), capture_output=True, text=True, timeout=20)
    if tried.returncode or tried.stdout.strip() != str(NOBODY):
        raise NoSandbox(INSTALL.format(tried.stderr.strip() or f"a trial ran as uid {tried.stdout.strip()}"))


def _places(tmp_bytes: int) -> list[str]:
    """The system, read-only, and the few places that can be written."""
    line: list[str] = []
    for path in (*SYSTEM, *SETTINGS):
        if os.path.islink(path):
            line += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            line += ["--ro-bind", path, path]
    line += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):
        line += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", path]
    return [*line, "--perms", "0777", "--dir", "/tmp/home"]


def _python() -> list[str]:
    line: list[str] = []
    for path in dict.fromkeys([os.path.realpath(sys.base_prefix), sys.prefix, *_elsewhere_on_path()]):
        if not path.startswith("/usr/"):
            line += [*_parents(Path(path)), "--ro-bind", path, path]
    return line


def _elsewhere_on_path() -> list[str]:
    """Folders of PYTHONPATH that hold packages, without the course itself."""
    # a path that leads to the same environment would show what is hidden in it
    inside = (sys.prefix, os.path.realpath(sys.prefix), sys.base_prefix, str(COURSE))
    found = [os.path.realpath(p) for p in sys.path if p.endswith("site-packages") or "site" in Path(p).name]
    return [p for p in found if os.path.isdir(p) and not p.startswith(inside)]


def _course_lib(answers: bool) -> list[str]:
    """course_lib under its own path; empty folders cover recorded results and, unless asked for, its answers."""
    line = [*_parents(COURSE_LIB), "--ro-bind", str(COURSE_LIB), str(COURSE_LIB)]
    for name in (*(() if answers else ANSWERS), "recorded"):
        if (COURSE_LIB / name).is_dir():
            line += ["--tmpfs", str(COURSE_LIB / name), "--remount-ro", str(COURSE_LIB / name)]
    return line


def _autograder() -> list[str]:
    """A package `autograder` that has `inside` and, for what lessons import of it, a stub.

    The empty folder beneath covers the rest of it where the course is installed in this python's own environment.
    """
    package = INSIDE.parent
    line = [*_parents(package), "--perms", "0755", "--tmpfs", str(package)]
    line += ["--ro-bind", str(INSIDE), str(INSIDE), "--ro-bind", str(INSIDE / "stub.py"), str(package / "__init__.py")]
    return [*line, "--remount-ro", str(package)]


def _hidden(names: Sequence[str]) -> list[str]:
    """Empty folders over packages, and over a module's file one that defines nothing. A name that is neither fails
    here, not silently in the sandbox.

    What a course may leave out, and this one leaves out, needs no cover.
    """
    line: list[str] = []
    left_out = {f"course_lib.{name}" for name in ANSWERS if not (COURSE_LIB / name).is_dir()}
    for name in (name for name in names if name not in left_out):
        top, *below = name.split(".")
        home = importlib.util.find_spec(top)
        path = Path(*home.submodule_search_locations, *below) if home else None
        if path is None or not (path.is_dir() or path.with_suffix(".py").is_file()):
            raise NoSandbox(f"{name} should be hidden from a submission, and is neither package nor module here")
        if not path.is_dir():
            line += ["--ro-bind", str(INSIDE / "nothing.py"), str(path.with_suffix(".py"))]
            path = path.parent / "__pycache__"  # holds what the file said, compiled
        if path.is_dir():
            line += ["--tmpfs", str(path), "--remount-ro", str(path)]
    return line


def _gpu(number: int) -> list[str]:
    """Device nodes of one GPU, by the number of its node; inside, it is the only one."""
    line: list[str] = []
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", f"/dev/nvidia{number}"):
        line += ["--dev-bind-try", path, path]
    for path in ["/sys", *glob.glob("/usr/local/nvidia")]:
        line += ["--ro-bind-try", path, path]
    # Triton asks ldconfig where the driver's library is, and ldconfig fails for another uid on some systems
    from triton.backends.nvidia.driver import libcuda_dirs

    line += ["--setenv", "TRITON_LIBCUDA_PATH", libcuda_dirs()[0]]
    return line


def _environment() -> dict[str, str]:
    # The last is course_lib.device.MEMORY_LIMIT; this file needs nothing of the course.
    kept = ("LANG", "TRITON_INTERPRET", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "SPEED_OF_LIGHT_GPU_GIB")
    ours = {
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join([str(COURSE), *_elsewhere_on_path()]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "HOME": "/tmp/home",
        "USER": "nobody",  # no file of users is here, and torch 2.11's compiler asks for a name
        "TMPDIR": "/tmp",
        "TRITON_CACHE_DIR": "/tmp/home/triton",
        "MPLCONFIGDIR": "/tmp/home/matplotlib",
    }
    return {name: os.environ[name] for name in kept if name in os.environ} | ours


def _prlimit(limits: Limits) -> list[str]:
    line = ["prlimit", "--core=0", f"--nproc={limits.processes}", f"--fsize={limits.file_bytes}"]
    line.append(f"--nofile={limits.open_files}")
    if limits.memory_bytes:
        line.append(f"--as={limits.memory_bytes}")
    return line


def _parents(path: Path) -> list[str]:
    """Folders above a mount point: bubblewrap would make them 0700, which another uid cannot pass."""
    above = [p for p in reversed(path.parents) if str(p) not in ("/", "/tmp", "/usr", "/dev")]
    return [part for folder in above for part in ("--perms", "0755", "--dir", str(folder))]
