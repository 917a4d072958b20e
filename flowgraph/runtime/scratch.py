"""Scratch folders: each is held by the process that made it. What a killed one left goes at the next start.

Left are the folder, and processes that were noted in it: an engine's server, and Ray where it was started for a run.
A folder is held by a lock, which ends with its process however that ends; only folders of ours and of this user are
looked at, and only processes of this machine since it was started are ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.process_groups import END_S, forget_shared_memory, kill
from flowgraph.files.untrusted import parse_json, read_text

PREFIX = "flowgraph-"
RULE_PREFIX = "flowgraph_rule-"  # where rules write: no name that is swept, and nothing inside is believed
LOCK, PROCESSES = "lock", "processes.jsonl"
_SESSION = re.compile(r"session_[0-9_-]{20,60}")  # as Ray names them

_held = dict[Path, int]()


def make(prefix: str = PREFIX) -> Path:
    """Return a new folder that this process holds until `remove`, or its end. Raises OSError."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    _held[path] = handle
    return path


def remove(path: Path) -> None:
    """Remove a folder, with all that is in it; one that is gone is no error."""
    _remove_tree(path)
    handle = _held.pop(path, None)
    if handle is not None:
        os.close(handle)


@contextmanager
def scratch(prefix: str = PREFIX) -> Generator[Path]:
    """Give a folder, and remove it at the end."""
    path = make(prefix)
    try:
        yield path
    finally:
        remove(path)


def note_group(folder: Path, leader: int) -> None:
    """Note a process that leads a group and that must not outlive this one, in a scratch folder or one inside it."""
    _note(folder, {"leader": leader, "started": _started(leader)})


def note_ray(folder: Path, session: str) -> None:
    """Note a Ray that was started for this process, by the name of its session."""
    _note(folder, {"session": session})


def sweep(folder: Path | None = None) -> list[Path]:
    """Remove what processes of this user that have ended left in a folder, that for temporary files if none is given.

    Returns the scratch folders that were removed.
    """
    return [path for path in _abandoned(folder or Path(tempfile.gettempdir())) if _clear(path)]


def _abandoned(folder: Path) -> Iterator[Path]:
    """Yield scratch folders that nobody holds; each is locked while it is looked at."""
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # another start may be faster
            if path.is_symlink() or path.stat().st_uid != os.getuid() or path in _held:
                continue
            handle = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(handle)


def _clear(path: Path) -> bool:
    for parent, folders, files in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith(RULE_PREFIX))
        for told in _noted(Path(parent, PROCESSES)) if PROCESSES in files else ():
            if told.get("where") == _where():
                _end(told)
    _remove_tree(path)
    return not path.exists()


def _remove_tree(path: Path) -> None:
    with contextlib.suppress(RecursionError):  # a rule whose guard was killed may have left a tree of any depth
        shutil.rmtree(path, ignore_errors=True)


def _end(told: dict[str, Any]) -> None:
    """End a group whose leader is the one that was noted, or is gone; and the processes of a Ray."""
    import psutil

    ended = list[Any]()
    if _SESSION.fullmatch(str(told.get("session", ""))):
        ended = [each for each in psutil.process_iter() if str(told["session"]) in _command(each) and _mine(each)]
        for each in ended:
            with contextlib.suppress(psutil.Error):
                each.kill()
    elif (
        isinstance(leader := told.get("leader"), int) and leader > 1 and _started(leader) in (None, told.get("started"))
    ):
        forget_shared_memory(leader)
        ended = kill(leader)
    psutil.wait_procs(ended, timeout=END_S)


def _note(folder: Path, told: dict[str, Any]) -> None:
    with (folder / PROCESSES).open("a", encoding="utf-8") as file:
        file.write(json.dumps({**told, "where": _where()}) + "\n")


def _noted(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [parse_json(line) for line in read_text(path).splitlines()]
    except (OSError, ValueError):
        return []  # cut off in the middle of its first line, say: there is nothing to go by
    return [line for line in lines if isinstance(line, dict)]


def _started(pid: int) -> float | None:
    """Return when a process began, None if it is not there or waits to be reaped."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _where() -> str:
    """Name this start of this machine, and the container that process ids are of: they are others in the next."""
    import psutil

    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


def _command(process: Any) -> str:
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _mine(process: Any) -> bool:
    import psutil

    own = Path("/proc/self/ns/pid")
    try:
        here = not own.exists() or Path(f"/proc/{process.pid}/ns/pid").samefile(own)
        return bool(here and process.uids().real == os.getuid())
    except (psutil.Error, OSError):
        return False
