"""The guard of one grader process: it starts that process confined, watches what it uses, and leaves nothing behind.

`nodes.grader_worker` starts this file as a script. The guard runs no rule and reads no response. All that a rule
starts becomes a child of the guard at the latest when its own parent ends, so that a daemon cannot leave.
The guard ends when the process does, or when the parent closes its end of the lifeline.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
from typing import Any

LOOK_S = 0.25
SCRATCH_BYTES = 1 << 30
SCRATCH_FILES = 10_000
FILE_BYTES = 256 << 20
ADDRESS_SPACE_RATIO = 4  # of address space to memory: libraries map much that they never touch
_SUBREAPER, _DROP_BOUNDING = 36, 24  # prctl
_CAPABILITIES = 64
_PAGE_BYTES = resource.getpagesize()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# What Landlock has no right for, and would reach files or processes outside: modes, owners, times and attributes of
# files; limits, priorities and cores of other processes; the clock; memory that belongs to no process.
DENIED = (
    *("fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "utimensat", "file_setattr"),
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
    *("prlimit64", "setpriority", "ioprio_set", "migrate_pages", "move_pages", "process_madvise", "process_mrelease"),
    *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *("clock_settime", "settimeofday", "adjtimex", "clock_adjtime", "chroot", "quotactl", "acct", "vhangup", "syslog"),
    *("memfd_create", "memfd_secret", "mq_open", "fanotify_init", "name_to_handle_at", "kcmp", "listen"),
    "pidfd_getfd",
)
DENIED_X86 = ("chmod", "chown", "lchown", "utime", "utimes", "futimesat")
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
SIGNAL_SCOPE_ABI = 6


def confined(command: list[str], spec: dict[str, Any]) -> tuple[int, Any]:
    """Start a command under Landlock and seccomp; return its process id and the handle to wait for its end."""
    import sandlock

    first_of = sandlock.Protection
    denied = [*DENIED, *(DENIED_X86 if os.uname().machine == "x86_64" else ())]
    if sandlock.landlock_abi_version() < SIGNAL_SCOPE_ABI:
        denied += SIGNALS
    sandbox = sandlock.Sandbox(
        fs_readable=spec["readable"],
        fs_writable=[spec["scratch"], "/dev/null"],
        net_allow=["*:*"] if spec["network"] else [],
        extra_deny_syscalls=denied,
        max_processes=spec["processes"],
        allow_degraded=[
            first_of.NET_TCP,
            first_of.FS_IOCTL_DEV,
            first_of.SIGNAL_SCOPE,
            first_of.ABSTRACT_UNIX_SOCKET_SCOPE,
        ],
    )
    process = sandbox.popen(command)
    assert process.pid is not None
    return process.pid, process


def unconfined(command: list[str]) -> tuple[int, Any]:
    """Start a command with the rights of the user, for a rule that was allowed to have them."""
    process = subprocess.Popen(command, close_fds=True)
    return process.pid, process


def limit(memory_bytes: int) -> None:
    """Bound what this process, and so all that it starts, can allocate and write; none of them dumps its memory."""
    for kind, most in (
        ("RLIMIT_DATA", memory_bytes),
        ("RLIMIT_AS", memory_bytes * ADDRESS_SPACE_RATIO),
        ("RLIMIT_FSIZE", FILE_BYTES),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit of address space
            resource.setrlimit(getattr(resource, kind), (most, most))


def adopt() -> None:
    """Become the parent of what loses its own, on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up what root may do beyond the files that it owns; an ordinary user has nothing to give up."""
    import ctypes

    libc = ctypes.CDLL(None)
    for capability in range(_CAPABILITIES):
        libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc.capset(header, (ctypes.c_uint32 * 6)())


def children() -> list[int]:
    """List the child processes of all threads of this process."""
    return _children_of("self")


def _children_of(process: int | str) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def family(process: int) -> list[int]:
    """List a process and all below it."""
    found, after = [process], 0
    while after < len(found):
        found += _children_of(found[after])
        after += 1
    return found


def memory_bytes(processes: list[int], most: int) -> int:
    """Add up the memory of processes; pages that they share are counted once, where it matters for the limit."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/statm") as file:
            total += int(file.read().split()[1]) * _PAGE_BYTES
    return total if total <= most else sum(map(_own_bytes, processes))


def _own_bytes(process: int) -> int:
    """Read the proportional share of a process's memory, in bytes; 0 if it ended."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
    return 0


def scratch_overfull(folder: str) -> bool:
    """Tell if a scratch folder holds more bytes or files than it may, or what cannot be counted.

    A link counts as itself. A folder that cannot be read, or lies too deep, could hold anything.
    """
    files, size_bytes, waiting = 0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for one in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):
                        size_bytes += one.stat(follow_symlinks=False).st_blocks * 512
                    if files > SCRATCH_FILES or size_bytes > SCRATCH_BYTES:
                        return True
                    if one.is_dir(follow_symlinks=False):
                        waiting.append(one.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile
        except OSError:
            return True
    return False


def remove(folder: str) -> None:
    """Remove a folder, however deep it is and whatever rights it has; what cannot be removed stays."""
    _open_up(folder)
    with contextlib.suppress(OSError):
        empty(folder)
        os.rmdir(folder)


def empty(folder: str) -> bool:
    """Remove what is in a folder; tell if all could be removed. Raises OSError for a folder that cannot be read.

    What lies deeper is moved to the top first, so that no path and no stack grows. Nothing is reached by a path: where
    a guard was killed, a rule's processes may put a link in a folder's place meanwhile.
    """
    unique, moved = os.urandom(8).hex(), 0
    waiting = os.listdir(folder)
    if not waiting:
        return True  # as it mostly is; to list takes long where a confined process does it
    top = os.open(folder, _FOLDER)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                os.unlink(name, dir_fd=top)
                continue
            _open_up(name, top)
            inside = os.open(name, _FOLDER, dir_fd=top)
            try:
                for inner in os.listdir(inside):
                    moved += 1
                    up = f"{unique}-{moved}"
                    _open_up(inner, inside)  # to move a folder is to write in it
                    os.rename(inner, up, src_dir_fd=inside, dst_dir_fd=top)
                    waiting.append(up)
            finally:
                os.close(inside)
            os.rmdir(name, dir_fd=top)
    os.close(top)
    return not os.listdir(folder)


def _open_up(name: str, folder: int | None = None) -> None:
    """Give a folder the rights that removing it takes; a confined process may not, and a link is left alone."""
    with contextlib.suppress(OSError):
        if sys.platform != "linux":
            os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
            return
        found = os.open(name, os.O_PATH | _FOLDER, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        finally:
            os.close(found)


def over(process: int, spec: dict[str, Any]) -> str:
    """Return which limit a process and all below it have passed together; empty if none."""
    everyone = family(process)
    if memory_bytes(everyone, spec["memory_bytes"]) > spec["memory_bytes"]:
        return f"over {spec['memory_bytes'] >> 20} MiB of memory"
    if scratch_overfull(spec["scratch"]):
        return f"over {SCRATCH_BYTES >> 20} MiB or {SCRATCH_FILES} files of scratch, or what cannot be counted"
    return ""


def watch(process: int, ended: int, lifeline: int, spec: dict[str, Any], say: int) -> None:
    """Wait until the process ends, passes a limit, or the parent lets go of the lifeline."""
    while not select.select([ended, lifeline], [], [], LOOK_S)[0]:
        if what := over(process, spec):
            os.write(say, f"flowgraph ended this process: {what}\n".encode())
            return


def end(process: int) -> None:
    """Kill a process, its group, and whatever this guard has inherited from it, until nothing is left."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError):
            kill(process, signal.SIGKILL)
    while others := [one for one in children() if one != process]:
        for one in others:
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(one, 0)


def leave_as(code: int) -> None:
    """End as the process ended: with its exit code, or by the signal that ended it."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(spec: dict[str, Any]) -> None:
    """Guard one process until it ends."""
    lifeline, scratch = spec["lifeline"], spec["scratch"]
    os.set_inheritable(lifeline, False)
    say = os.dup(2)
    adopt()
    if spec["confined"]:
        drop_capabilities()
        limit(spec["memory_bytes"])
    try:
        process, handle = confined(spec["command"], spec) if spec["confined"] else unconfined(spec["command"])
    except Exception as error:  # noqa: BLE001 - whatever the library raises, the rule must not run unconfined
        why = f"it cannot be confined here: {' '.join(str(error).split())}"
        os.write(1, json.dumps({"failed": "not_loaded", "why": why[:300], "at": ""}).encode() + b"\n")
        remove(scratch)
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # held open here, the end of the process would not be seen
        os.dup2(nothing, descriptor)
    ended = _ended(process)
    watch(process, ended, lifeline, spec, say)
    end(process)
    code = _code(handle.wait())
    end(process)  # what it started in its last moment
    remove(scratch)
    leave_as(code)


def _ended(process: int) -> int:
    """Return a descriptor that can be read once the process has ended."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process)
    read, write = os.pipe()  # macOS: a child holds the other end and waits
    if os.fork() == 0:
        while True:
            select.select([], [], [], LOOK_S)
            with contextlib.suppress(OSError):
                os.kill(process, 0)
                continue
            os._exit(0)
    os.close(write)
    return read


def _code(result: Any) -> int:
    """Read an exit code, or minus a signal, off what either way of starting returns."""
    if isinstance(result, int):
        return result
    if result.reason == 0:
        return int(result.exit_code)
    return -int(result.signal) if result.signal > 0 else -int(signal.SIGKILL)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        given = json.load(file)
    os.unlink(sys.argv[1])
    main(given)
