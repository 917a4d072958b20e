"""Python environments of engines: their packages, their folders, and how one is installed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import WorkerError
from flowgraph.files.untrusted import read_json

INSTALL_S = 3600.0
STAMP = "installed.json"


@dataclass(frozen=True)
class Environment:
    """One environment: its engine's package, and what pip installs with dependencies, then without (`unresolved`).

    `disk_gb` is its size on disk.
    """

    name: str
    package: str
    about: str
    disk_gb: float
    resolved: tuple[str, ...]
    unresolved: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return the hash of the lists of packages; another list is another environment."""
        listed = json.dumps([self.resolved, self.unresolved, sys.version_info[:2]])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


def folder_of(environment: Environment, cache: Path) -> Path:
    """Return the folder of an environment inside the cache."""
    return cache / "engines" / environment.name


def installed(environment: Environment, cache: Path) -> dict[str, str]:
    """Return the versions of an environment's packages by name; {} if it is incomplete, or of another list."""
    stamp = folder_of(environment, cache) / STAMP
    try:
        content = read_json(stamp)
        return dict(content["packages"]) if content["digest"] == environment.digest else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def python_of(environment: Environment, cache: Path) -> Path:
    """Return the Python of an environment; raise WorkerError if it is not installed."""
    if not installed(environment, cache):
        where = str(folder_of(environment, cache))
        what = f"the engine's environment `{environment.name}` is not installed"
        raise WorkerError(what, where=where, hint=f"flowgraph engines install {environment.name}")
    return folder_of(environment, cache) / "bin" / "python"


def install(environment: Environment, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Install an environment if it is not complete yet, and return its folder; a second process waits for the first.

    The stamp is written last: a folder without one is installed again. Raises WorkerError with pip's last lines.
    """
    import fcntl

    folder = folder_of(environment, cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed(environment, cache):
            return folder
        say(f"{environment.name}: installing into {folder} ({environment.disk_gb} GB, some minutes)")
        shutil.rmtree(folder, ignore_errors=True)
        _run(environment.name, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = str(folder / "bin" / "python")
        pip = [_with_pip(environment.name), "-m", "pip", "--python", python, "install", *_QUIET]
        _run(environment.name, [*pip, *environment.resolved])
        _run(environment.name, [*pip, "--no-deps", *environment.unresolved])
        versions: dict[str, str] = json.loads(_run(environment.name, [python, "-c", _LIST]))
        draft = folder / f"{STAMP}.tmp"
        content = {"digest": environment.digest, "packages": dict(sorted(versions.items()))}
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
        draft.replace(folder / STAMP)
    say(f"{environment.name}: ready in {folder}")
    return folder


_QUIET = ("--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--retries=2")
_LIST = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


def _with_pip(name: str) -> str:
    """Return a Python that has a pip, which can install into another environment: this one, or its base."""
    for python in dict.fromkeys((sys.executable, os.path.realpath(sys.executable))):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return python
    raise WorkerError.not_started(f"the installation of `{name}`", "no pip", f"{sys.executable} -m ensurepip")


def _run(name: str, command: Sequence[str]) -> str:
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"installing `{name}` took more than {INSTALL_S:.0f} s") from None
    if output.returncode:
        lines = [line for line in output.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise WorkerError(f"installing `{name}` failed", notes=lines[-4:], hint="pip needs its package index")
    return output.stdout
