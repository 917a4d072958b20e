"""Python environments of engines: their packages, their folders, and their installation; also versions of engines.

The environments and versions of each engine are in the folder of the engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import WorkerError
from flowgraph.files.untrusted import read_json

INSTALL_S = 3600.0
STAMP = "installed.json"


@dataclass(frozen=True)
class Environment:
    """One Python environment: its engine's `package`, and the requirements that pip installs into it.

    pip installs `resolved` with their dependencies, and then `unresolved` without. `disk_gb` is the size on disk in GB.
    """

    name: str
    package: str
    about: str
    disk_gb: float
    resolved: tuple[str, ...]
    unresolved: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits of a hash of the requirements and of this Python's major and minor version.

        `install` replaces an environment that was installed with another digest.
        """
        listed = json.dumps([self.resolved, self.unresolved, sys.version_info[:2]])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


def folder_of(environment: Environment, cache: Path) -> Path:
    """Return the path inside `cache` where an environment is installed, or will be."""
    return cache / "engines" / environment.name


def installed_packages(environment: Environment, cache: Path) -> dict[str, str]:
    """Return the version of each package of an environment, by name; {} if the environment is not complete in `cache`.

    An environment that was installed from other requirements or for another Python counts as incomplete.
    """
    stamp = folder_of(environment, cache) / STAMP
    try:
        content = read_json(stamp)
        return dict(content["packages"]) if content["digest"] == environment.digest else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def python_of(environment: Environment, cache: Path) -> Path:
    """Return the path of the Python executable of an environment that is installed in `cache`.

    Raises WorkerError if the environment is not completely installed there.
    """
    if not installed_packages(environment, cache):
        where = str(folder_of(environment, cache))
        what = f"the engine's environment `{environment.name}` is not installed"
        raise WorkerError(what, where=where, hint=f"flowgraph engines install {environment.name}")
    return folder_of(environment, cache) / "bin" / "python"


def install(environment: Environment, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Install an environment with pip into `cache`, unless it is complete there, and return its folder.

    Waits while another process installs the environment. An incomplete folder is deleted first. `say` gets progress
    messages. Raises WorkerError if a command fails (with the last four lines of its errors) or takes more than an hour,
    or if this Python has no pip; OSError if `cache` cannot be written.
    """
    import fcntl

    folder = folder_of(environment, cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed_packages(environment, cache):
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


# ------------------------------------------------------------------------------------------- versions


@dataclass(frozen=True)
class VersionTraits:
    """The behaviour of one version of an engine.

    With `session`, weights by group or memory must come between calls of `begin_weight_update` and `end_weight_update`.
    `tried` are the kinds of devices on which we ran this version, of "cpu" and "cuda". With `masks`, the server reports
    which tokens a truncation keeps, and log-probs of these.
    """

    session: bool
    tried: tuple[str, ...] = ()
    masks: bool = False


@dataclass(frozen=True)
class EngineVersions:
    """The known versions of one engine; `hint` tells users how to install another version."""

    engine: str
    table: Mapping[str, VersionTraits]
    hint: str

    @property
    def oldest(self) -> str:
        """Return the oldest version in the table."""
        return min(self.table, key=version_numbers)

    @property
    def newest(self) -> str:
        """Return the newest version in the table."""
        return max(self.table, key=version_numbers)

    def __str__(self) -> str:
        return f"{self.engine} {self._range}"

    @property
    def _range(self) -> str:
        return " to ".join(dict.fromkeys((self.oldest, self.newest)))

    def known(self, version: str, device: str) -> tuple[VersionTraits, str]:
        """Return the traits of a version, and a warning if it is not in the table or was not tried on `device`.

        `device` is "cpu" or "cuda". The warning is "" for a tried version. A version that is not in the table has the
        traits of the newest listed version before it. Raises WorkerError if all listed versions are newer, or if
        `version` does not start with a number.

        >>> from flowgraph.engines.sglang import SGLANG
        >>> from flowgraph.engines.vllm import VLLM
        >>> SGLANG.known("0.5.23", "cpu")
        (VersionTraits(session=True, tried=('cpu',), masks=True), '')
        >>> SGLANG.known("0.9.1", "cpu")[1]
        'SGLang 0.9.1 is not in the table of versions (0.5.18 to 0.5.23): it is treated as 0.5.23'
        >>> VLLM.known("0.32.0", "cuda")[1]
        'vLLM 0.32.0 was not tried here on cuda'
        """
        if version_numbers(version) < version_numbers(self.oldest):
            what = f"{self.engine} {version} is too old: {self.oldest} is the oldest that is known"
            raise WorkerError(what, hint=self.hint)
        before = max(
            (name for name in self.table if version_numbers(name) <= version_numbers(version)), key=version_numbers
        )
        traits = self.table[before]
        if version_numbers(before) != version_numbers(version):
            what = f"{self.engine} {version} is not in the table of versions ({self._range})"
            return traits, f"{what}: it is treated as {before}"
        return traits, "" if device in traits.tried else f"{self.engine} {version} was not tried here on {device}"


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version, for comparison; () if it does not start with a number.

    >>> version_numbers("0.5.23"), version_numbers("0.5.23.post1"), version_numbers("0.6.0rc1"), version_numbers("?")
    ((0, 5, 23), (0, 5, 23), (0, 6, 0), ())
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
