"""The guard of one grader process: it starts that process confined, limits its resources, and cleans up after it.

`grader_worker` starts this file as a script. The guard runs no rule and reads no response. Every process that a rule
starts becomes a child of the guard when its parent ends, so that a daemon cannot escape. The guard ends when the
process does, or when the parent closes its end of the lifeline.
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
THREADS = 1_024  # of all processes together; the supervisor counts processes only
ADDRESS_SPACE_RATIO = 4  # of address space to memory: libraries map much more than they use
_SUBREAPER, _DROP_BOUNDING = 36, 24  # prctl
_CAPABILITIES = 64
_PAGE_BYTES = resource.getpagesize()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Calls that Landlock has no right for, and that reach files or processes outside: modes, owners, times and attributes
# of files; limits, priorities and cores of other processes; the clock; memory that belongs to no process.
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


def started(spec: dict[str, Any]) -> Any:
    """Start the command of `spec`, a worker's `spec.json`, and return the process handle of subprocess or sandlock.

    The command runs under Landlock and seccomp if `spec["confined"]`, else with the user's rights. Raises the errors of
    these libraries if it cannot be started.
    """
    if not spec["confined"]:
        return subprocess.Popen(spec["command"], close_fds=True)
    import sandlock

    optional = sandlock.Protection
    denied = [*DENIED, *(DENIED_X86 if os.uname().machine == "x86_64" else ())]
    if sandlock.landlock_abi_version() < SIGNAL_SCOPE_ABI:
        denied += SIGNALS
    sandbox = sandlock.Sandbox(
        fs_readable=spec["readable"],
        fs_writable=[spec["scratch"], "/dev/null"],
        net_allow=spec["network"],
        extra_deny_syscalls=denied,
        max_processes=spec["processes"],
        allow_degraded=[
            optional.NET_TCP,
            optional.FS_IOCTL_DEV,
            optional.SIGNAL_SCOPE,
            optional.ABSTRACT_UNIX_SOCKET_SCOPE,
        ],
    )
    process = sandbox.popen(spec["command"])
    assert process.pid is not None
    return process


def limit(memory_bytes: int) -> None:
    """Limit the memory and the file size, in bytes, of this process and of each of its children; disable core dumps.

    `memory_bytes` limits data; address space may be four times as large, and a file at most 256 MiB. A limit that the
    system refuses is left as it is, without an error.
    """
    for kind, limit_bytes in (
        ("RLIMIT_DATA", memory_bytes),
        ("RLIMIT_AS", memory_bytes * ADDRESS_SPACE_RATIO),
        ("RLIMIT_FSIZE", FILE_BYTES),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            resource.setrlimit(getattr(resource, kind), (limit_bytes, limit_bytes))


def drop_capabilities() -> None:
    """Drop all Linux capabilities of this process and its bounding set; keep the user id, and ignore errors."""
    import ctypes

    libc = ctypes.CDLL(None)
    for capability in range(_CAPABILITIES):
        libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc.capset(header, (ctypes.c_uint32 * 6)())


def _children_of(process: int | str) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return children


def threads(processes: list[int]) -> int:
    """Return the total number of threads of processes, given by their ids; a process that has ended counts as 0."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/stat") as file:
            total += int(file.read().rpartition(") ")[2].split()[17])
    return total


def memory_bytes(processes: list[int], limit_bytes: int) -> int:
    """Return the resident memory of processes in bytes; if it is above `limit_bytes`, shared pages count only once.

    `processes` are process ids; one that has ended counts as 0.
    """
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/statm") as file:
            total += int(file.read().split()[1]) * _PAGE_BYTES
    if total <= limit_bytes:
        return total
    shares = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/smaps_rollup") as file:
            shares += sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
    return shares


def scratch_overfull(folder: str) -> bool:
    """Return whether a scratch folder has more than 1 GiB or 10,000 files, or cannot be counted.

    Folders and links count as files, and links are not followed. A folder that cannot be read, or that is too deep,
    cannot be counted.
    """
    files, size_bytes, waiting = 0, 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):
                        size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    if files > SCRATCH_FILES or size_bytes > SCRATCH_BYTES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile
        except OSError:
            return True
    return False


def remove(folder: str) -> None:
    """Remove a folder, whatever its depth and permissions; entries that cannot be removed are left without an error."""
    _open_up(folder)
    with contextlib.suppress(OSError):
        empty(folder)
        os.rmdir(folder)


def empty(folder: str) -> bool:
    """Remove the contents of a folder and return whether it is empty now. Raises OSError if the folder is unreadable.

    Entries that cannot be removed are left; those of subfolders may then have moved to the top of the folder.
    """
    unique, moved = os.urandom(8).hex(), 0
    waiting = os.listdir(folder)
    if not waiting:
        return True  # the usual case; a second listing takes a confined process long
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
    """Give a folder the permissions that its removal needs; links stay unchanged. Confined processes cannot do this."""
    with contextlib.suppress(OSError):
        if sys.platform != "linux":
            os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
            return
        handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)


def exceeded(process: int, spec: dict[str, Any]) -> str:
    """Return a text that says which limit on memory, threads or scratch a process and its descendants exceed, or ""."""
    family = [process]
    for member in family:  # it grows meanwhile
        family += _children_of(member)
    if memory_bytes(family, spec["memory_bytes"]) > spec["memory_bytes"]:
        return f"over {spec['memory_bytes'] >> 20} MiB of memory"
    if threads(family) > THREADS:
        return f"over {THREADS} threads"
    if scratch_overfull(spec["scratch"]):
        return f"over {SCRATCH_BYTES >> 20} MiB or {SCRATCH_FILES} files of scratch, or what cannot be counted"
    return ""


def watch(process: int, lifeline: int, spec: dict[str, Any], say: int) -> None:
    """Wait until a process ends, exceeds a limit of `spec` with its descendants, or the parent closes the lifeline.

    The process is not killed. Limits are checked every 0.25 s; one that is exceeded is reported on `say`. `lifeline`
    and `say` are file descriptors.
    """
    ended = _ended(process)
    while not select.select([ended, lifeline], [], [], LOOK_S)[0]:
        if what := exceeded(process, spec):
            os.write(say, f"flowgraph ended this process: {what}\n".encode())
            return


def end(process: int) -> None:
    """Kill a process, its group, and all orphans that this guard has adopted, until none is left."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(OSError):
            kill(process, signal.SIGKILL)
    while orphans := [child for child in _children_of("self") if child != process]:
        for orphan in orphans:
            with contextlib.suppress(OSError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(orphan, 0)


def main(spec: dict[str, Any]) -> None:
    """Start the process of `spec`, guard it until it ends, remove its scratch folder, and exit with its code or signal.

    If the process cannot be started, an answer that says why is written on standard output, and the exit code is 0.
    """
    lifeline, scratch = spec["lifeline"], spec["scratch"]
    os.set_inheritable(lifeline, False)
    say = os.dup(2)
    if sys.platform == "linux":  # become the parent of orphans below this process
        import ctypes

        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    if spec["confined"]:
        drop_capabilities()
        limit(spec["memory_bytes"])
    try:
        handle = started(spec)
    except Exception as error:  # noqa: BLE001 - whatever the library raises, the rule must not run unconfined
        why = f"it cannot be confined here: {' '.join(str(error).split())}"
        os.write(1, json.dumps({"failed": "not_loaded", "why": why[:300], "at": ""}).encode() + b"\n")
        remove(scratch)
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # if they stayed open here, the end of the process would not be seen
        os.dup2(nothing, descriptor)
    process = handle.pid
    watch(process, lifeline, spec, say)
    end(process)
    result = handle.wait()
    if isinstance(result, int):
        code = result
    elif result.reason == 0:
        code = int(result.exit_code)
    else:
        code = -int(result.signal) if result.signal > 0 else -int(signal.SIGKILL)
    end(process)  # it may have started more in its last moment
    remove(scratch)
    if code < 0:  # end by the same signal
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _ended(process: int) -> int:
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


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        arguments = json.load(file)
    os.unlink(sys.argv[1])
    main(arguments)
