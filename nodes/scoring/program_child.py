"""The process of one program: its walls, its limits, and how it is run as a script.

`program_host` forks it. Only the standard library is imported, all of it before the first fork, so that a fork starts
with the modules that programs use.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

# What a program finds imported, as verl's `prime_code` and the APPS benchmark do: many published solutions rely on it.
PRELUDE = """\
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from builtins import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, operator
import io, sys, json
"""
RECURSION = 600_000
TRACEBACK_FRAMES = 8
LAST_DESCRIPTOR = 65_536

_SET_SECCOMP, _FILTER = 22, 2  # prctl
_SET_RLIMIT = {"x86_64": 160, "aarch64": 164}  # the C library would call prlimit64, which can reach other processes
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE, _CLONE3, _CLONE_THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x10000
_NEW_PROCESSES = {"x86_64": (57, 58), "aarch64": ()}  # fork, vfork
_NEW_PROGRAMS = {"x86_64": (59, 322), "aarch64": (221, 281)}  # execve, execveat
_X32_CALLS = 0x40000000
_LIMITS = {"cpu_s": 0, "file_bytes": 1, "memory_bytes": 2, "core_bytes": 4, "open_files": 7, "address_bytes": 9}


def forbid_processes() -> None:
    """Forbid this process to start other processes and programs, by a seccomp filter; threads are allowed.

    Raises OSError if the kernel refuses, and KeyError on architectures other than x86_64 and aarch64.
    """
    machine = os.uname().machine
    load, equal, above, masked, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    lines = [
        *((load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[machine]), (answer, 0, 0, refuse | errno.EACCES)),
        (load, 0, 0, 0),
        *((above, 0, 1, _X32_CALLS), (answer, 0, 0, refuse | errno.ENOSYS)),
        *((equal, 0, 1, _CLONE3), (answer, 0, 0, refuse | errno.ENOSYS)),  # so threads start by clone, which shows why
    ]
    for call in _NEW_PROCESSES[machine]:
        lines += [(equal, 0, 1, call), (answer, 0, 0, refuse | errno.EAGAIN)]
    for call in _NEW_PROGRAMS[machine]:
        lines += [(equal, 0, 1, call), (answer, 0, 0, refuse | errno.EACCES)]
    lines += [
        (equal, 0, 3, _CLONE[machine]),
        *((load, 0, 0, 16), (masked, 1, 0, _CLONE_THREAD), (answer, 0, 0, refuse | errno.EAGAIN)),
        (answer, 0, 0, allow),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in lines))
    header = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "processes cannot be forbidden")


def limit(limits: dict[str, int]) -> None:
    """Limit this process for good: CPU seconds, bytes of memory, address space, core dumps and files, and open files.

    `limits` has `cpu_s`, `memory_bytes`, `address_bytes`, `core_bytes`, `file_bytes` and `open_files`. Raises OSError
    if the kernel refuses, and KeyError on architectures other than x86_64 and aarch64.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in _LIMITS.items():
        soft = limits[name]
        pair = struct.pack("=QQ", soft, soft + (name == "cpu_s"))  # SIGXCPU a second before SIGKILL: it says why
        if libc.syscall(_SET_RLIMIT[os.uname().machine], kind, ctypes.c_char_p(pair)):
            raise OSError(ctypes.get_errno(), f"{name} cannot be limited")


def prelude() -> dict[str, object]:
    """Return the names that every program finds imported, with their values."""
    names: dict[str, object] = {}
    exec(PRELUDE, names)
    names.pop("__builtins__", None)
    return names


def run(code: str, names: dict[str, object]) -> int:
    """Run a program as a script on the descriptors 0, 1 and 2, with the global `names`; return its exit code.

    The code is that of `sys.exit`, 1 after any other exception, whose traceback goes to standard error, and else 0.
    Waits for the program's threads and runs its exit handlers. Replaces `sys.stdin`, `sys.stdout` and `__main__` of
    this process.
    """
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    names |= {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    sys.argv = ["program.py"]
    sys.setrecursionlimit(RECURSION)
    module = sys.modules["__main__"] = ModuleType("__main__")
    vars(module).update(names)
    ended = _ending(lambda: exec(compile(code, "program.py", "exec"), vars(module)))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    # `atexit` is how fast-output templates of programming contests write their output.
    ended = ended or _ending(atexit._run_exitfuncs)  # pyright: ignore[reportPrivateUsage]
    return ended or _ending(lambda: [stream.flush() for stream in (sys.stdout, sys.__stdout__) if stream])


def _ending(act: Callable[[], object]) -> int:
    try:
        act()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return (leaving.code or 0) & 0xFF
        print(leaving.code, file=sys.__stderr__)
        return 1
    except BaseException as error:  # noqa: BLE001 - a program may raise anything
        with suppress(BaseException):
            traceback.print_exception(error, limit=-TRACEBACK_FRAMES, file=sys.__stderr__)
        return 1
    return 0
