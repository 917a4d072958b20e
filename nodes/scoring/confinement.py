"""Permissions of a confined process: its environment, the paths it can read, and what this machine can enforce.

`nodes.scoring.grader_guard` implements the confinement; `nodes.scoring.grader_rights` has the
permissions of one rule.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import RuleError

MEMORY_BYTES = 4 << 30
PROCESSES = 64
MIN_LANDLOCK_ABI = 3  # Linux 6.2: since then a process that may only read a file cannot truncate it
FULL_LANDLOCK_ABI = 6
ARCHITECTURES = ("x86_64", "aarch64")

_ALLOWED = re.compile(r"network|state|unconfined|read=(?P<read>.+)|env=(?P<env>\w+)|memory=(?P<gib>[1-9]\d{0,3})GiB")
WORDS = ("network", "state", "unconfined", "read=PATH", "env=NAME", "memory=8GiB")

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONHASHSEED")
_THREADS = (
    *(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")),
    "VECLIB_MAXIMUM_THREADS",
)
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/lib", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup"),
)
NETWORK_PATHS = (
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/run/systemd/resolve"),
)


@dataclass(frozen=True)
class Allowed:
    """The permissions of a rule in addition to scoring text: none by default, except 4 GiB of memory."""

    endpoints: tuple[str, ...] = ()  # HOST:PORT, or *:* for all
    state: bool = False
    unconfined: bool = False
    reads: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    memory_bytes: int = MEMORY_BYTES


def allowed(words: Sequence[str]) -> Allowed:
    """Return the permissions that the words of the setting `allow` give a rule. Raises RuleError for an unknown word.

    Of several "memory=…", the largest counts.

    >>> allowed(["network", "env=JUDGE_KEY", "memory=8GiB"]).variables
    ('JUDGE_KEY',)
    """
    matches = [match for word in words if (match := _ALLOWED.fullmatch(word))]
    if len(matches) < len(words):
        raise RuleError.unknown_allowance(next(word for word in words if not _ALLOWED.fullmatch(word)), WORDS)
    gib = [int(match["gib"]) for match in matches if match["gib"]]
    return Allowed(
        endpoints=("*:*",) if "network" in words else (),
        state="state" in words,
        unconfined="unconfined" in words,
        reads=tuple(str(Path(match["read"]).expanduser().absolute()) for match in matches if match["read"]),
        variables=tuple(match["env"] for match in matches if match["env"]),
        memory_bytes=max(gib) << 30 if gib else MEMORY_BYTES,
    )


def environment(variables: Mapping[str, str], scratch: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment variables of a confined process.

    Those for program paths, language and time zone, and those in `names`, are copied from `variables` if they are
    there. Numbers of threads are 1 unless `variables` has them. `scratch` is the home folder and the temporary folder.

    >>> environment({"PATH": "/bin", "WANDB_API_KEY": "secret"}, "/tmp/scratch")["HOME"]
    '/tmp/scratch'
    """
    chosen = {name: variables[name] for name in (*_ENVIRONMENT, *names) if name in variables}
    threads = {name: variables.get(name, "1") for name in _THREADS}
    fixed = {"HOME": scratch, "TMPDIR": scratch, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**threads, **chosen, **fixed}


@functools.cache
def lacks() -> str:
    """Return a sentence that says what this machine lacks to confine a process; "" if it lacks nothing. Cached."""
    if sys.platform != "linux":
        return f"the kernel of {sys.platform} has no Landlock"
    try:
        import sandlock
    except (ImportError, OSError, RuntimeError) as error:
        return f"the package sandlock cannot be loaded: {error}"
    if os.uname().machine not in ARCHITECTURES:
        return f"sockets are not closed on {os.uname().machine}, only on {' and '.join(ARCHITECTURES)}"
    abi = sandlock.landlock_abi_version()
    if abi < MIN_LANDLOCK_ABI:
        version = f"has Landlock {abi}" if abi > 0 else "has no Landlock, or it is off"
        return f"the kernel {version}; {MIN_LANDLOCK_ABI} is needed (Linux 6.2)"
    return ""


def system_paths() -> list[str]:
    """Return the existing paths that any confined process can read: of the system, this Python and its packages."""
    return existing((*_SYSTEM, *python_folders()))


def existing(paths: Sequence[str]) -> list[str]:
    """Return the paths that exist, in order and without duplicates."""
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@functools.cache
def python_folders() -> tuple[str, ...]:
    """Return the folders of this Python and of its installed packages, and the files of the interpreter itself."""
    import site

    paths = sysconfig.get_paths()
    prefixes = (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))
    user = (site.getusersitepackages(),) if site.ENABLE_USER_SITE else ()
    shared = (os.path.join(sys.base_prefix, "lib"), os.path.join(sys.prefix, "share"))
    python = (sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"))
    return tuple(dict.fromkeys((*prefixes, *user, *shared, *python)))
