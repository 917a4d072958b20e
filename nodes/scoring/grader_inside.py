"""Confinement that a grader process applies to itself, in addition to sandlock's, and imports from unlistable folders.

It closes sockets, and keeps a response's fork from reaching its parent.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import struct
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec

_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38  # prctl

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # Landlock's calls, with the same numbers on each architecture
_MAKE_DEVICE = (1 << 6) | (1 << 11)  # a right that is given up already: a domain has to give up one
_SCOPE_SIGNAL, _SIGNAL_SCOPE_ABI = 2, 6


def enclose() -> None:
    """Put this process and its descendants into a separate Landlock domain. Raises OSError if the kernel refuses.

    From inside, the parent process cannot be reached: neither its memory, nor its open files by `/proc/PID/fd` or
    `pidfd_getfd`, nor, from Linux 6.12 on, by a signal.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, 0, 1)
    scoped = _SCOPE_SIGNAL if abi >= _SIGNAL_SCOPE_ABI else 0
    rights = struct.pack("=QQQ", _MAKE_DEVICE, 0, scoped)[: 24 if scoped else 8]
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.create_string_buffer(rights, len(rights)), len(rights), 0)
    if ruleset < 0 or libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "a response cannot be isolated")
    os.close(ruleset)


def close_sockets() -> None:
    """Forbid this process and its descendants, for good, to create sockets other than socket pairs.

    Raises OSError if the kernel refuses, and KeyError on architectures other than x86_64 and aarch64. MPTCP, fast open,
    netlink and vsock are forbidden too, which neither Landlock (TCP) nor the guard's seccomp filter (UDP) covers.
    """
    architecture, socket_call = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}[os.uname().machine]
    load_word, equal, refuse, allow = 0x20, 0x15, 0x00050000 | errno.EACCES, 0x7FFF0000
    program = struct.pack(
        "<" + "HBBI" * 7,
        *(load_word, 0, 0, 4),  # the architecture
        *(equal, 1, 0, architecture),
        *(0x06, 0, 0, refuse),  # another one's numbers mean other calls
        *(load_word, 0, 0, 0),  # the number of the call
        *(equal, 0, 1, socket_call),
        *(0x06, 0, 0, refuse),
        *(0x06, 0, 0, allow),
    )
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", 7, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), "sockets cannot be closed")


class UnlistedFinder:
    """Finds modules in a folder whose files can be read but not listed. Raises ImportError for any other folder."""

    def __init__(self, folder: str) -> None:
        try:
            os.listdir(folder)
        except PermissionError:
            self.folder = folder
        except OSError as error:
            raise ImportError(folder) from error
        else:
            raise ImportError(f"{folder} can be listed")  # so the next path hook is asked

    def find_spec(self, fullname: str, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module or package in the folder; None if it is not there."""
        stem = os.path.join(self.folder, fullname.rpartition(".")[2])
        package = os.path.join(stem, "__init__.py")
        if os.path.isfile(package):
            return importlib.util.spec_from_file_location(fullname, package, submodule_search_locations=[stem])
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if os.path.isfile(stem + suffix):
                return importlib.util.spec_from_file_location(fullname, stem + suffix)
        if not os.path.isdir(stem):
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [stem]
        return spec
