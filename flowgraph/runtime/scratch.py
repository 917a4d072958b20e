"""Scratch folders, each locked by the process that created it; the next start removes those of killed processes.

It also ends processes that were registered in such a folder: servers of engines, and a Ray that was started for a run.
A lock ends with its process, however the process ends. Only folders with our prefix that belong to this user are
opened, and only processes of this machine since its last boot are ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.process_groups import END_S, forget_shared_memory, kill
from flowgraph.files.untrusted import parse_json, read_text

PREFIX = "flowgraph-"
RULE_PREFIX = "flowgraph_rule-"  # where rules write: not a name that is swept, and nothing inside is trusted
LOCK, PROCESSES = "lock", "processes.jsonl"
_SESSION = re.compile(r"session_[0-9_-]{20,60}")  # as Ray names them

_locks = dict[Path, int]()


def make() -> Path:
    """Create a scratch folder, and return its path; this process locks the folder until `remove` or its own end.

    Raises OSError if the folder cannot be created.
    """
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    _locks[path] = handle
    return path


def remove(path: Path) -> None:
    """Remove a scratch folder with everything in it, and release its lock; errors and a missing folder are ignored."""
    with contextlib.suppress(RecursionError):  # a rule whose guard was killed may have left a tree of any depth
        shutil.rmtree(path, ignore_errors=True)
    if (handle := _locks.pop(path, None)) is not None:
        os.close(handle)


@contextmanager
def scratch() -> Generator[Path]:
    """Yield a new scratch folder, and remove it at the end of the block. Raises OSError as `make` does."""
    path = make()
    try:
        yield path
    finally:
        remove(path)


def note_group(folder: Path, leader: int) -> None:
    """Register a process group in a scratch folder, so that the next `sweep` ends it if this process is killed.

    `folder` is a scratch folder or inside one; `leader` is the group leader's process id. Raises OSError if writing
    fails.
    """
    _note(folder, {"leader": leader, "started": _started(leader)})


def note_ray(folder: Path, session: str) -> None:
    """Register a Ray session in a scratch folder, so that the next `sweep` ends it if this process is killed.

    `session` is its name, such as `session_2026-01-31_12-00-00_000000_1234`. Raises OSError if writing fails.
    """
    _note(folder, {"session": session})


def sweep() -> list[Path]:
    """Remove the scratch folders of this user's ended processes, and return the removed folders.

    Processes that are registered in these folders are killed first, if they belong to this boot of the machine and to
    this container. A folder that could not be removed completely is not returned.
    """
    removed = list[Path]()
    for path in _abandoned():
        for parent, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith(RULE_PREFIX))
            for note in _notes(Path(parent, PROCESSES)) if PROCESSES in files else ():
                if note.get("where") == _boot():
                    _end(note)
        remove(path)
        removed += [] if path.exists() else [path]
    return removed


def _abandoned() -> Iterator[Path]:
    """Yield the scratch folders that no process has locked; each is locked until the next is requested."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # another start may be faster
            if path.is_symlink() or path.stat().st_uid != os.getuid() or path in _locks:
                continue
            handle = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(handle)


def _end(note: Mapping[str, Any]) -> None:
    import psutil

    ended, leader, session = list[Any](), note.get("leader"), str(note.get("session", ""))
    if _SESSION.fullmatch(session):
        ended = [process for process in psutil.process_iter() if _is_of(process, session)]
        for process in ended:
            with contextlib.suppress(psutil.Error):
                process.kill()
    elif isinstance(leader, int) and leader > 1 and _started(leader) in (None, note.get("started")):
        forget_shared_memory(leader)
        ended = kill(leader)
    psutil.wait_procs(ended, timeout=END_S)


def _note(folder: Path, note: Mapping[str, Any]) -> None:
    with (folder / PROCESSES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**note, "where": _boot()}) + "\n")


def _notes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file; an entry that was cut off because its process was killed is skipped."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in read_text(path).splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(note := parse_json(line), dict):
                    yield note


def _started(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _boot() -> str:
    """Return a name for this boot of the machine and this container: process ids are valid only within both."""
    import psutil

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _is_of(process: Any, session: str) -> bool:
    import psutil

    container = Path("/proc/self/ns/pid")
    try:
        if session not in " ".join(process.cmdline()) or process.uids().real != os.getuid():
            return False
        return not container.exists() or Path(f"/proc/{process.pid}/ns/pid").samefile(container)
    except (psutil.Error, OSError):
        return False
