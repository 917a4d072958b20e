"""The one thing that sandlock leaves to a grader process itself: to give up sockets before a rule is loaded."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38  # prctl


def close_sockets() -> None:
    """Let this process and all below it make no socket of any family, but pairs of their own.

    Landlock knows TCP, and seccomp as the guard sets it knows UDP; what is left is MPTCP, fast open, netlink, vsock.
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
