"""Scratch folders: what a killed process left is removed at the next start, and nothing else."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flowgraph.engines.servers.process_groups import forget_shared_memory
from flowgraph.runtime import scratch

ROOT = Path(__file__).parents[4]
# A driver that is killed while what it started lives on: a server whose leader is gone, and an agent of Ray.
KILLED = """
import os, subprocess, sys, tempfile
sys.path[:0] = [sys.argv[1]]
tempfile.tempdir = sys.argv[2]
from flowgraph.runtime import scratch
folder = scratch.make()
own = folder / "all-0"
own.mkdir()
silent = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
leader = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, **silent)
scratch.note_group(own, leader.pid)
member = int(leader.stdout.readline())
leader.kill()
leader.wait()
session = f"session_2026-01-01_00-00-00_{os.getpid():012d}"
agent = [sys.executable, "-c", "import time; time.sleep(600)", "--session-name=" + session]
agent = subprocess.Popen(agent, stdout=subprocess.DEVNULL, **silent)
scratch.note_ray(folder, session)
print(folder, member, agent.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def there(pid: int) -> bool:
    """Say whether a process runs."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_a_killed_process_left_is_removed_and_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = scratch.make()
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (tmp_path / "flowgraph-picture").mkdir()  # without a lock: of somebody else
    held = (
        tmp_path / "flowgraph-held"
    )  # of a process that ended, but which noted a leader whose number is another's now
    held.mkdir()
    (held / scratch.LOCK).touch()
    scratch.note_group(held, other.pid)
    told = json.loads((held / scratch.PROCESSES).read_text())
    (held / scratch.PROCESSES).write_text(json.dumps(told | {"started": 1.0}) + '\n{"cut')
    command = [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder, *left = done.stdout.split()
    try:
        assert Path(folder).is_dir() and all(there(int(pid)) for pid in left)
        assert scratch.sweep() == sorted([held, Path(folder)])
        assert not any(there(int(pid)) for pid in left)
        assert sorted(tmp_path.iterdir()) == sorted([mine, tmp_path / "flowgraph-picture"])
        assert other.poll() is None
    finally:
        for pid in (*left, other.pid):
            if there(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
        other.wait()
    scratch.remove(mine)
    assert not mine.exists() and scratch.sweep() == []


def test_notes_that_a_rule_wrote_are_not_believed_and_no_tree_is_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    left = tmp_path / "flowgraph-left"
    written = left / f"{scratch.RULE_PREFIX}x"
    written.mkdir(parents=True)
    (left / scratch.LOCK).touch()
    scratch.note_group(written, other.pid)
    here = Path.cwd()
    try:
        assert scratch.sweep() == [left] and other.poll() is None
        deep = scratch.make()
        os.chdir(deep)
        for _ in range(3_000):
            Path("d").mkdir()
            os.chdir("d")
        os.chdir(here)
        scratch.remove(deep)
        subprocess.run(["rm", "-rf", str(deep)], check=True)
    finally:
        os.chdir(here)
        other.kill()
        other.wait()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no such folder")
def test_shared_memory_loses_its_name_whatever_it_was_called_while_it_was_made() -> None:
    made, named = Path(f"/dev/shm/flowgraph-made-{os.getpid()}"), Path(f"/dev/shm/flowgraph-named-{os.getpid()}")
    made.write_bytes(bytes(4096))
    os.link(made, named)  # as a semaphore gets its name
    with made.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        made.unlink()
        forget_shared_memory(os.getpid())
        assert not named.exists()
