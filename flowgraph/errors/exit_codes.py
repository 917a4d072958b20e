"""The exit codes of the command line, one for each class of outcome. Each error class has one of these codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of a command; `MEANINGS` describes each code."""

    DONE = 0
    FAULT = 1
    USAGE = 2
    RESUMABLE = 3
    NOT_RESUMABLE = 4
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "success",
    ExitCode.FAULT: "a fault in a flow, plan, file, model or run, or no placement fits",
    ExitCode.USAGE: "usage error: the command line contradicts itself or its data",
    ExitCode.RESUMABLE: "the run failed and can continue: flowgraph resume RUN",
    ExitCode.NOT_RESUMABLE: "the run cannot be resumed, because something has changed",
    ExitCode.INTERRUPTED: "interrupted",
}
"""What each code means, in a line of `flowgraph --help` and of the reference."""
