"""What hostile code is after: files, sockets and a process, and what it has changed of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

ATTACKS_FILE = Path(__file__).with_name("attacks.py")
MARKER = f"sleep 98.{os.getpid()}"  # like no other process of this machine


class World:
    """What an attack is after: files, sockets and a process, put back as they were after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret, self.database, self.target = folder / "secret.txt", folder / "data.db", folder / "target.txt"
        self.home, self.beside = folder / "home", folder / "beside"
        self.secret.write_text("hunter2")
        with sqlite3.connect(self.database) as database:
            database.execute("create table t (x)")
            database.execute("insert into t values (1)")
        database.close()
        shutil.copy(ATTACKS_FILE, folder / "attacks.py")
        self.source = (folder / "attacks.py").read_bytes()
        self.sockets = [
            socket.create_server(("127.0.0.1", 0)),
            socket.socket(socket.AF_UNIX),
            socket.socket(socket.AF_UNIX),
        ]
        self.port = self.sockets[0].getsockname()[1]
        for one, name in zip(self.sockets[1:], (str(folder / "s"), f"\0hostile{os.getpid()}"), strict=True):
            one.bind(name)
            one.listen()
        self.victim: subprocess.Popen[bytes] | None = None
        self.restore()

    def restore(self) -> None:
        """Put back what an attack may have changed, and forget what it has started."""
        for path in (self.home, self.beside):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        (self.folder / "target.txtx").unlink(missing_ok=True)
        self.target.unlink(missing_ok=True)
        self.target.write_text("untouched")
        self.target.chmod(0o600)
        os.utime(self.target, (1_000, 1_000))
        self.file = self.target.stat()
        (self.folder / "attacks.py").write_bytes(self.source)
        if self.victim is None or self.hurt():
            self.bury()
            self.victim = subprocess.Popen(["sleep", "600"])
            self.before = self._process()
        for one in running(MARKER):
            os.kill(one, 9)

    def _process(self) -> tuple[str, ...]:
        assert self.victim is not None
        where = Path(f"/proc/{self.victim.pid}")
        limits = next(line for line in (where / "limits").read_text().splitlines() if "open files" in line)
        state = where.joinpath("stat").read_text().rpartition(") ")[2].split()
        return (
            "stopped" if state[0] == "T" else "",
            limits,
            state[16],
            (where / "oom_score_adj").read_text(),
        )

    def hurt(self) -> bool:
        """Tell if the process was ended, stopped or limited."""
        assert self.victim is not None
        return self.victim.poll() is not None or self._process() != self.before

    def bury(self) -> None:
        """End the process, stopped or not."""
        if self.victim is not None:
            self.victim.kill()
            self.victim.wait()

    def close(self) -> None:
        """End what was started."""
        self.restore()
        self.bury()
        for one in self.sockets:
            one.close()

    def told(self) -> dict[str, Any]:
        """What an attack is told: where everything is."""
        assert self.victim is not None
        paths = {
            name: str(getattr(self, name)) for name in ("folder", "secret", "database", "target", "home", "beside")
        }
        return {
            **paths,
            "port": self.port,
            "socket": str(self.folder / "s"),
            "abstract": f"\0hostile{os.getpid()}",
            "victim": self.victim.pid,
            "driver": os.getpid(),
            "marker": MARKER,
        }

    def changed(self) -> set[str]:
        """Name what an attack has changed."""
        effects = set[str]()
        if not self.target.exists() or self.target.read_text() != "untouched":
            effects.add("the file's text")
        elif (now := self.target.stat()) and (now.st_mode, now.st_mtime) != (self.file.st_mode, self.file.st_mtime):
            effects.add("the file's mode or time")
        if list(self.home.iterdir()) or list(self.beside.iterdir()):
            effects.add("a new file")
        if (self.folder / "attacks.py").read_bytes() != self.source:
            effects.add("the rule's file")
        if self.hurt():
            effects.add("another process")
        return effects


def running(words: str) -> list[int]:
    """Find the processes whose command line is this."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
    return found


def gone(words: str, limit_s: float = 3.0) -> bool:
    """Wait until no process has these words on its command line."""
    end_s = time.monotonic() + limit_s
    while running(words) and time.monotonic() < end_s:
        time.sleep(0.02)
    return not running(words)
