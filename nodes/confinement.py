"""What a grader process may do: its environment, what it can read, and what this machine can hold it to.

How a process is held to it is in `nodes.grader_guard`; which rule runs is decided in `nodes.graders`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import RuleError
from nodes.rules import COMPARING_RULES, RuleRef

MEMORY_BYTES = 4 << 30
PROCESSES = 64
LEAST_LANDLOCK_ABI = 3  # Linux 6.2: from then on a file cannot be cut short by who may only read it
FULL_LANDLOCK_ABI = 6
ARCHITECTURES = ("x86_64", "aarch64")

_ALLOWED = re.compile(r"network|state|unconfined|read=(?P<read>.+)|env=(?P<env>\w+)|memory=(?P<gib>[1-9]\d{0,3})GiB")
WORDS = ("network", "state", "unconfined", "read=PATH", "env=NAME", "memory=8GiB")

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONHASHSEED")
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/lib", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/mime.types"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup"),
)
_NETWORK = (
    *("/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/run/systemd/resolve"),
)
_CODE = (".py", ".pyc", ".so", ".pyd")


@dataclass(frozen=True)
class Allowed:
    """What a rule may do beyond scoring text: all of it is off by default."""

    network: bool = False
    state: bool = False
    unconfined: bool = False
    reads: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    memory_bytes: int = MEMORY_BYTES


def allowed(words: Sequence[str]) -> Allowed:
    """Read what a rule is allowed off the setting `allow`; RuleError for a word that means nothing.

    >>> allowed(["network", "env=JUDGE_KEY", "memory=8GiB"]).variables
    ('JUDGE_KEY',)
    """
    found = [(word, _ALLOWED.fullmatch(word)) for word in words]
    for word, match in found:
        if match is None:
            raise RuleError.unknown_allowance(word, WORDS)
    matches = [match for _, match in found if match is not None]
    gib = [int(match["gib"]) for match in matches if match["gib"]]
    return Allowed(
        network="network" in words,
        state="state" in words,
        unconfined="unconfined" in words,
        reads=tuple(str(Path(match["read"]).expanduser().absolute()) for match in matches if match["read"]),
        variables=tuple(match["env"] for match in matches if match["env"]),
        memory_bytes=max(gib) << 30 if gib else MEMORY_BYTES,
    )


def environment(given: Mapping[str, str], scratch: str, variables: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of a grader process: where programs are, language, threads, and those allowed by name.

    >>> environment({"PATH": "/bin", "WANDB_API_KEY": "secret"}, "/tmp/scratch")["HOME"]
    '/tmp/scratch'
    """
    kept = {name: given[name] for name in (*_ENVIRONMENT, *variables) if name in given}
    threads = {name: given.get(name, "1") for name in _THREADS}
    return {**threads, **kept, "HOME": scratch, "TMPDIR": scratch, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"}


@functools.cache
def lacks() -> str:
    """Return what this machine lacks to confine a process; empty if it lacks nothing."""
    if sys.platform != "linux":
        return f"the kernel of {sys.platform} has no Landlock"
    try:
        import sandlock
    except (ImportError, OSError, RuntimeError) as error:
        return f"the package sandlock does not load: {error}"
    if os.uname().machine not in ARCHITECTURES:
        return f"sockets are not closed on {os.uname().machine}, only on {' and '.join(ARCHITECTURES)}"
    abi = sandlock.landlock_abi_version()
    if abi < LEAST_LANDLOCK_ABI:
        had = f"has Landlock {abi}" if abi > 0 else "has no Landlock, or it is off"
        return f"the kernel {had}; {LEAST_LANDLOCK_ABI} is needed (Linux 6.2)"
    return ""


def refuse_unheld(rule: RuleRef, words: Sequence[str]) -> Allowed:
    """Return what a rule may do here; RuleError if it has to be confined and this machine cannot.

    A shipped rule that only compares text needs no confinement; one that reads an expression, and a rule of your
    own, do.
    """
    may = allowed(words)
    if may.unconfined or not (why := lacks()):
        return may
    if rule.shipped and rule.name in COMPARING_RULES:
        return Allowed(unconfined=True)
    raise RuleError.unconfinable(rule.text, why)


def readable(rule: RuleRef, import_path: Sequence[str], may: Allowed) -> list[str]:
    """List what a rule's process can read: the system's and Python's own files, packages, and the rule's neighbours.

    Of a folder that is not Python's own, such as the working folder, only modules and packages can be read, not what
    else lies there.
    """
    own = _python_folders()
    beside = [os.path.dirname(rule.source)] if rule.source.endswith(".py") else []
    outside = [folder for folder in (*import_path, *beside) if not _below(folder, own)]
    outside += [inner for folder in outside for inner in _open_packages(folder, rule)]
    code = [path for folder in dict.fromkeys(outside) for path in _code_in(folder)]
    wanted = (*_SYSTEM, *(_NETWORK if may.network else ()), *own, *code, *may.reads)
    return [path for path in dict.fromkeys(wanted) if os.path.exists(path)]


@functools.cache
def _python_folders() -> tuple[str, ...]:
    """List the folders of this Python and of its installed packages."""
    import site

    named = sysconfig.get_paths()
    prefixes = (named["stdlib"], named["platstdlib"], named["purelib"], named["platlib"], named["scripts"])
    users = (site.getusersitepackages(),) if site.ENABLE_USER_SITE else ()
    here = (sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"))
    shared = (os.path.join(sys.base_prefix, "lib"), os.path.join(sys.prefix, "share"))
    return tuple(dict.fromkeys((*prefixes, *users, *shared, *here)))


def _below(folder: str, others: Iterable[str]) -> bool:
    return any(folder == other or folder.startswith(other + os.sep) for other in others)


def _open_packages(folder: str, rule: RuleRef) -> list[str]:
    """List the folders on the way to a rule's module that have no `__init__.py`."""
    names = [] if rule.source.endswith(".py") else rule.source.split(".")[:-1]
    inner = [os.path.join(folder, *names[:depth]) for depth in range(1, len(names) + 1)]
    return [path for path in inner if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__init__.py"))]


def _code_in(folder: str) -> list[str]:
    """List a folder's modules and packages."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return [folder] if folder.endswith(".zip") else []
    modules = [one.path for one in found if one.name.endswith(_CODE)]
    packages = [one.path for one in found if os.path.isfile(os.path.join(one.path, "__init__.py"))]
    return [*modules, *packages]


def confinement_summary() -> str:
    """Return what this machine can hold rules to, in a line or two."""
    if why := lacks():
        held = f"not confined: {why}"
        return f'{held}\nonly {", ".join(sorted(COMPARING_RULES))} run; others need allow=["unconfined"]'
    import sandlock

    abi = sandlock.landlock_abi_version()
    weaker = "" if abi >= FULL_LANDLOCK_ABI else f" ({FULL_LANDLOCK_ABI} is the full set)"
    return f"confined by Landlock {abi}{weaker} and seccomp: no network, no files but their code and a scratch folder"
