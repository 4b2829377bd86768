"""Run a program without the system calls that no lesson needs: `python seccomp.py PROGRAM ARGUMENT ...`

The last step of the sandbox's command line, inside it. A namespace, a mount, another process's memory, System V shared
memory (which no count of processes would see) and the corners of the kernel in which most of its bugs were found are
refused with EPERM, for the program and everything it starts. It is a seccomp filter, so nothing can take it off again.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

# number on x86_64, number on aarch64
REFUSED = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "ioprio_set": (251, 30),
}
MACHINES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # column, audit number, clone
CLONE3 = 435
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
X32 = 0x40000000  # x86_64's second set of numbers
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def rules(machine: str) -> list[tuple[int, int, int, int]]:
    """(operation, skip when true, skip when false, value) of a classic BPF program."""
    column, audit, clone = MACHINES[machine]
    program = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    program += [(AT_LEAST, 0, 1, X32), (RETURN, 0, 0, EPERM)]
    # clone3 hides its flags in memory; the C library falls back to clone when there is no clone3
    program += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ENOSYS)]
    for numbers in REFUSED.values():
        program += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, EPERM)]
    program += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_OF, 0, 1, NEW_NAMESPACES)]
    return [*program, (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]


def refuse() -> None:
    """Put this process, and all that it will start, behind the filter."""
    program = b"".join(struct.pack("HBBI", *rule) for rule in rules(platform.machine()))
    kept = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, first, second in ((PR_SET_NO_NEW_PRIVS, 1, None), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, described)):
        if libc.prctl(option, ctypes.c_ulong(first), second, 0, 0):
            raise OSError(ctypes.get_errno(), "the kernel takes no system call filter")


if __name__ == "__main__":
    refuse()
    os.execvp(sys.argv[1], sys.argv[1:])
