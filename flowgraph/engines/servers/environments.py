"""Environments that an engine has for itself: which packages they hold, where they lie, and how one is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import WorkerError
from flowgraph.files.untrusted import read_json

INSTALL_S = 3600.0
STAMP = "installed.json"


@dataclass(frozen=True)
class Environment:
    """One environment: its engine's package, and what pip installs with dependencies, then without.

    `disk_gb` is what it takes on disk once it is made.
    """

    name: str
    package: str
    about: str
    disk_gb: float
    resolved: tuple[str, ...]
    alone: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Name the packages that are asked for; another list is another environment."""
        listed = json.dumps([self.resolved, self.alone, sys.version_info[:2]])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


def folder_of(wanted: Environment, cache: Path) -> Path:
    """Give the folder of an environment inside the cache."""
    return cache / "engines" / wanted.name


def installed(wanted: Environment, cache: Path) -> dict[str, str]:
    """Give the versions of an environment's packages by name; none where it is not whole, or of another list."""
    stamp = folder_of(wanted, cache) / STAMP
    try:
        told = read_json(stamp)
        return dict(told["packages"]) if told["digest"] == wanted.digest else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def python_of(wanted: Environment, cache: Path) -> Path:
    """Give the Python of an environment; raise WorkerError where it is not installed."""
    if not installed(wanted, cache):
        where = str(folder_of(wanted, cache))
        what = f"the engine's environment `{wanted.name}` is not installed"
        raise WorkerError(what, where=where, hint=f"flowgraph engines install {wanted.name}")
    return folder_of(wanted, cache) / "bin" / "python"


def install(wanted: Environment, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Make an environment, unless it is there whole, and give its folder; two processes at once wait for each other.

    The stamp is written last: what has none is made anew. Raises WorkerError if pip fails, with its last lines.
    """
    folder = folder_of(wanted, cache)
    with _locked(folder):
        if installed(wanted, cache):
            return folder
        say(f"{wanted.name}: installing into {folder} ({wanted.disk_gb} GB, some minutes)")
        shutil.rmtree(folder, ignore_errors=True)
        _run(wanted, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = str(folder / "bin" / "python")
        for listed, options in ((wanted.resolved, ()), (wanted.alone, ("--no-deps",))):
            _run(wanted, [*_pip(wanted), "--python", python, "install", *_QUIET, *options, *listed])
        told = {"digest": wanted.digest, "packages": _versions(wanted, python)}
        draft = folder / f"{STAMP}.tmp"
        draft.write_text(json.dumps(told, indent=1), encoding="utf-8")
        draft.replace(folder / STAMP)
    say(f"{wanted.name}: ready in {folder}")
    return folder


_QUIET = ("--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--retries=2")
_LIST = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


def _pip(wanted: Environment) -> list[str]:
    """Name a pip that can install into another environment: this Python's, or its base's."""
    for python in dict.fromkeys((sys.executable, os.path.realpath(sys.executable))):
        done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if done.returncode == 0:
            return [python, "-m", "pip"]
    raise WorkerError.not_started(f"the installation of `{wanted.name}`", "no pip", f"{sys.executable} -m ensurepip")


def _run(wanted: Environment, command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"installing `{wanted.name}` took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise WorkerError(f"installing `{wanted.name}` failed", notes=lines[-4:], hint="pip needs its package index")
    return done.stdout


def _versions(wanted: Environment, python: str) -> dict[str, str]:
    found = json.loads(_run(wanted, [python, "-c", _LIST]))
    return {str(name): str(version) for name, version in sorted(found.items())}


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder that is being made; it lies beside it."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
