"""Start a command under a guard, which confines it, limits it, and ends all that it started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodes.scoring.confinement import PROCESSES, Allowed

END_LIMIT_S = 5.0  # within which a guard ends after its lifeline
_GUARD_FILE = str(Path(__file__).with_name("grader_guard.py"))


def start_guarded(
    command: list[str],
    scratch: str,
    may: Allowed,
    paths: Sequence[str],
    variables: Mapping[str, str],
    *,
    stdin: int,
    stdout: int,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a guard, which starts `command` within the permissions `may`; return the guard's process and the lifeline.

    The lifeline is a file descriptor. When it is closed, at the latest as this process ends, the guard ends the command
    and everything that the command has started. The command can read `paths`, and write in the folder `scratch`, which
    the guard removes at the end. It gets the environment `variables`, and the descriptors `stdin` and `stdout`.
    """
    lifeline, ours = os.pipe()
    spec = {
        "command": command,
        "lifeline": lifeline,
        "scratch": scratch,
        "confined": not may.unconfined,
        "readable": list(paths),
        "network": list(may.endpoints),
        "processes": PROCESSES,
        "memory_bytes": may.memory_bytes,
    }
    path = os.path.join(scratch, "spec.json")  # the guard removes it before anything else starts
    with open(path, "w") as file:
        json.dump(spec, file)
    with os.fdopen(lifeline):
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", _GUARD_FILE, path],
            env=variables,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=[lifeline],
            bufsize=0,
            start_new_session=True,
        )
    return process, ours
