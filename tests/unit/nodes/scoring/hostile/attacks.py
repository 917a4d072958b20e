"""What a response might do once it runs code inside a rule: one function for each attack, True where it got through.

`test_hostile_rules` names them one by one as responses of the rule below, so each runs in a grader's process.
"""

from __future__ import annotations

import builtins
import ctypes
import decimal
import gc
import io
import json
import math
import mmap
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace as Told
from typing import Any

ATTACKS: dict[str, Callable[[Any], object]] = {}
EVERY_FD = range(3, 40)
libc = ctypes.CDLL(None, use_errno=True)


def attack(function: Callable[[Any], object]) -> Callable[[Any], object]:
    ATTACKS[function.__name__] = function
    return function


def rule(response: str, told: dict[str, Any]) -> float:
    """Score 0.25 for an honest response, and 1 for an attack that got through."""
    if response == "honest":
        return float(honest())
    if response == "process":
        return float(os.getppid() if told["apart"] else os.getpid())
    if response in told["hangs"]:
        print("tick", flush=True)  # time passes on the test's clock
    try:
        return 1.0 if ATTACKS[response](Told(**told)) else 0.0
    except (OSError, MemoryError, KeyError, ImportError, sqlite3.Error, subprocess.SubprocessError):
        return 0.0


def honest() -> decimal.Decimal:
    """Compute 1/4 by what an attack may have changed; and look for what it may have left."""
    left = [name for name in os.listdir(os.environ["HOME"]) if name != "spec.json"]
    return decimal.Decimal(1) / 4 + len(left)


def allowed(call: int) -> bool:
    """Tell if a system call was let through, whatever it then said of its arguments."""
    return call >= 0 or ctypes.get_errno() not in (1, 13)


# ------------------------------------------------------------------------------------------ reading


@attack
def reads_a_key_of_the_environment(told: Any) -> object:
    return os.environ.get("HOSTILE_SECRET") == "hunter2"


@attack
def reads_the_drivers_environment(told: Any) -> object:
    return open(f"/proc/{told.driver}/environ", "rb").read(10)


@attack
def reads_its_parents_environment(told: Any) -> object:
    return open(f"/proc/{os.getppid()}/environ", "rb").read(10)


@attack
def reads_the_drivers_memory_map(told: Any) -> object:
    return open(f"/proc/{told.driver}/maps").read(10)


@attack
def opens_the_drivers_memory(told: Any) -> object:
    return open(f"/proc/{told.driver}/mem", "rb", buffering=0)


@attack
def lists_the_drivers_descriptors(told: Any) -> object:
    return os.listdir(f"/proc/{told.driver}/fd")


@attack
def reads_other_command_lines(told: Any) -> object:
    return [open(f"/proc/{one}/cmdline").read() for one in os.listdir("/proc") if one.isdigit()]


@attack
def reads_through_its_own_root(told: Any) -> object:
    return open("/proc/self/root" + told.secret).read()


@attack
def reads_a_secret_file(told: Any) -> object:
    return open(told.secret).read() == "hunter2"


@attack
def reads_an_account_file(told: Any) -> object:
    return open("/etc/passwd").read()


@attack
def lists_the_home_folder(told: Any) -> object:
    return os.listdir(told.home) is not None


@attack
def lists_the_run_folder(told: Any) -> object:
    return os.listdir(told.folder)


@attack
def reads_through_a_link_in_its_scratch(told: Any) -> object:
    link = os.path.join(os.environ["HOME"], "link")
    os.symlink(told.secret, link)
    try:
        return open(link).read()
    finally:
        os.unlink(link)


@attack
def links_a_secret_into_its_scratch(told: Any) -> object:
    link = os.path.join(told.beside, "hard")
    os.link(told.secret, link)
    return open(link).read()


@attack
def reopens_a_path_descriptor(told: Any) -> object:
    path = os.open(told.secret, os.O_PATH)
    return open(f"/proc/self/fd/{path}").read()


@attack
def reads_by_another_program(told: Any) -> object:
    return subprocess.run(["cat", told.secret], capture_output=True, text=True).stdout == "hunter2"


@attack
def reads_by_opening_code(told: Any) -> object:
    return io.open_code(told.secret).read()


@attack
def reads_a_database(told: Any) -> object:
    return sqlite3.connect(f"file:{told.database}?mode=ro", uri=True).execute("select * from t").fetchall()


# ------------------------------------------------------------------------------------------ writing


@attack
def overwrites_a_file(told: Any) -> object:
    return open(told.target, "w").write("taken")


@attack
def appends_to_a_file(told: Any) -> object:
    return open(told.target, "a").write("taken")


@attack
def cuts_a_file_short(told: Any) -> object:
    os.truncate(told.target, 0)
    return True


@attack
def removes_a_file(told: Any) -> object:
    os.unlink(told.target)
    return True


@attack
def renames_a_file(told: Any) -> object:
    os.rename(told.target, told.target + "x")
    return True


@attack
def opens_a_file_to_everyone(told: Any) -> object:
    os.chmod(told.target, 0o777)
    return True


@attack
def changes_a_files_time(told: Any) -> object:
    os.utime(told.target, (1, 1))
    return True


@attack
def gives_a_file_an_owner(told: Any) -> object:
    os.chown(told.target, os.getuid(), os.getgid())
    return True


@attack
def makes_a_link(told: Any) -> object:
    os.symlink("/", os.path.join(told.beside, "new"))
    return True


@attack
def makes_a_folder(told: Any) -> object:
    os.mkdir(os.path.join(told.beside, "folder"))
    return True


@attack
def makes_a_pipe(told: Any) -> object:
    os.mkfifo(os.path.join(told.beside, "pipe"))
    return True


@attack
def binds_a_socket_file(told: Any) -> object:
    socket.socket(socket.AF_UNIX).bind(os.path.join(told.beside, "bound"))
    return True


@attack
def writes_by_a_shell(told: Any) -> object:
    return subprocess.run(["sh", "-c", f"echo taken > {told.target}"], stderr=subprocess.DEVNULL).returncode == 0


@attack
def writes_to_the_common_temporary_folder(told: Any) -> object:
    descriptor, path = tempfile.mkstemp(dir="/tmp")
    os.unlink(path)
    return descriptor


@attack
def writes_to_shared_memory(told: Any) -> object:
    path = f"/dev/shm/hostile-{os.getpid()}"
    open(path, "w").close()
    os.unlink(path)
    return True


@attack
def changes_its_own_file(told: Any) -> object:
    return open(__file__, "a").write("\n")


@attack
def writes_to_home(told: Any) -> object:
    return open(os.path.join(told.home, "authorized_keys"), "w").write("me")


@attack
def volunteers_another_for_the_killer(told: Any) -> object:
    return open(f"/proc/{told.victim}/oom_score_adj", "w").write("900")


# ------------------------------------------------------------------------------------------ the network


@attack
def connects(told: Any) -> object:
    return socket.create_connection(("127.0.0.1", told.port), 1)


@attack
def connects_by_multipath(told: Any) -> object:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(("127.0.0.1", told.port))
    return True


@attack
def sends_with_the_first_packet(told: Any) -> object:
    return socket.socket().sendto(b"taken", 0x20000000, ("127.0.0.1", told.port)) == 5


@attack
def sends_a_datagram(told: Any) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"taken", ("127.0.0.1", told.port))


@attack
def connects_to_a_socket_file(told: Any) -> object:
    socket.socket(socket.AF_UNIX).connect(told.socket)
    return True


@attack
def connects_to_an_abstract_socket(told: Any) -> object:
    socket.socket(socket.AF_UNIX).connect(told.abstract)
    return True


@attack
def asks_the_kernel_for_its_interfaces(told: Any) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


@attack
def listens(told: Any) -> object:
    server = socket.socket()
    server.listen()
    return server.getsockname()[1]


@attack
def connects_by_another_process(told: Any) -> object:
    code = f"import socket; socket.create_connection(('127.0.0.1', {told.port}), 1)"
    return subprocess.run([sys.executable, "-S", "-c", code], stderr=subprocess.DEVNULL).returncode == 0


# ------------------------------------------------------------------------------------------ other processes


@attack
def kills_another(told: Any) -> object:
    os.kill(told.victim, signal.SIGTERM)
    return True


@attack
def stops_another(told: Any) -> object:
    os.kill(told.victim, signal.SIGSTOP)
    return True


@attack
def signals_the_driver(told: Any) -> object:
    os.kill(told.driver, 0)
    return True


@attack
def signals_by_descriptor(told: Any) -> object:
    signal.pidfd_send_signal(os.pidfd_open(told.victim), signal.SIGCONT)
    return True


@attack
def traces_another(told: Any) -> object:
    if os.fork() == 0:  # who traces has to end, so that the traced can
        os._exit(0 if libc.ptrace(0x4206, told.victim, 0, 0) == 0 else 1)  # PTRACE_SEIZE
    return os.wait()[1] == 0


@attack
def reads_anothers_memory(told: Any) -> object:
    return allowed(libc.process_vm_readv(told.driver, None, 0, None, 0, 0))


@attack
def limits_another(told: Any) -> object:
    return resource.prlimit(told.victim, resource.RLIMIT_NOFILE, (64, 64))


@attack
def slows_another(told: Any) -> object:
    os.setpriority(os.PRIO_PROCESS, told.victim, 5)
    return True


@attack
def moves_another_to_one_core(told: Any) -> object:
    os.sched_setaffinity(told.victim, {0})
    return True


@attack
def kills_its_parent(told: Any) -> object:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(5)


@attack
def stops_its_parent(told: Any) -> object:
    os.kill(os.getppid() if told.apart else os.getpid(), signal.SIGSTOP)
    time.sleep(5)


@attack
def leaves_a_child(told: Any) -> object:
    subprocess.Popen(told.marker.split())


@attack
def leaves_a_child_in_a_session_of_its_own(told: Any) -> object:
    subprocess.Popen(told.marker.split(), start_new_session=True)


def leave_behind(words: list[str], twice: bool = False) -> None:
    """Start a process in a session of its own, and return when it runs its program: that closes its end of the pipe."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            if twice and os.fork():
                os._exit(0)
            os.execvp(words[0], words)
        finally:
            os._exit(1)
    os.close(write)
    os.read(read, 1)


@attack
def leaves_a_daemon(told: Any) -> object:
    leave_behind(told.marker.split(), twice=True)


@attack
def leaves_one_that_ignores_signals(told: Any) -> object:
    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)  # a program that is started keeps what is ignored
    leave_behind(told.marker.split())


@attack
def breeds(told: Any) -> object:
    """Count how many processes can live at once, up to 150."""
    children = list[int]()
    try:
        for _ in range(150):
            child = os.fork()
            if child == 0:
                time.sleep(20)
                os._exit(0)
            children.append(child)
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@attack
def makes_a_namespace(told: Any) -> object:
    return libc.unshare(0x10000000) == 0  # CLONE_NEWUSER


@attack
def asks_for_a_ring(told: Any) -> object:
    return libc.syscall(425, 1, ctypes.create_string_buffer(256)) >= 0  # io_uring_setup


@attack
def raises_its_limits(told: Any) -> object:
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, resource.RLIM_INFINITY))
    return True


@attack
def changes_its_root(told: Any) -> object:
    if os.getuid():
        return not told.confined  # only root may
    if os.fork() == 0:
        try:
            os.chroot(os.environ["HOME"])
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.wait()[1] == 0


# ------------------------------------------------------------------------------------------ memory and disk


@attack
def allocates_a_lot(told: Any) -> object:
    return len(bytearray(3 << 30))


@attack
def maps_a_lot(told: Any) -> object:
    return len(mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


@attack
def shares_a_lot(told: Any) -> object:
    return len(mmap.mmap(-1, 6 << 30))


@attack
def makes_a_file_in_memory(told: Any) -> object:
    return os.memfd_create("hostile")


@attack
def writes_a_huge_file(told: Any) -> object:
    with open(os.path.join(os.environ["HOME"], "huge"), "wb") as file:
        file.seek(400 << 20)
        file.write(b"x")
    os.unlink(os.path.join(os.environ["HOME"], "huge"))
    return True


# ------------------------------------------------------------------------------------------ later rewards


@attack
def replaces_the_rule(told: Any) -> object:
    globals()["honest"] = lambda: 1.0


@attack
def replaces_a_builtin(told: Any) -> object:
    builtins.float = lambda *_: 1.0  # type: ignore[assignment,misc]


@attack
def replaces_a_library(told: Any) -> object:
    math.isfinite = lambda *_: False  # type: ignore[assignment]


@attack
def replaces_the_graders_own_code(told: Any) -> object:
    vars(sys.modules["__main__"])["as_scored"] = lambda *_, **__: {"score": 1.0}


@attack
def replaces_what_writes_answers(told: Any) -> object:
    real = json.dumps
    json.dumps = lambda line, **more: real({**line, "score": 1.0} if "score" in line else line)  # type: ignore[assignment]


@attack
def changes_arithmetic(told: Any) -> object:
    decimal.getcontext().prec = 1


@attack
def leaves_a_file_for_the_next(told: Any) -> object:
    open(os.path.join(os.environ["HOME"], "answers"), "w").close()


@attack
def leaves_a_folder_of_links_for_the_next(told: Any) -> object:
    os.makedirs(os.path.join(os.environ["HOME"], "a", "b"))
    os.symlink(told.target, os.path.join(os.environ["HOME"], "a", "link"))


@attack
def leaves_a_thread(told: Any) -> object:
    def later() -> None:
        while True:
            globals()["honest"] = lambda: 1.0
            time.sleep(0.001)

    threading.Thread(target=later, daemon=True).start()


@attack
def hooks_the_collector(told: Any) -> object:
    gc.callbacks.append(lambda *_: globals().update(honest=lambda: 1.0))
    for _ in range(3):
        gc.collect()


@attack
def hooks_calls(told: Any) -> object:
    sys.setprofile(lambda frame, event, _: globals().update(honest=lambda: 1.0))


@attack
def hooks_an_alarm(told: Any) -> object:
    signal.signal(signal.SIGALRM, lambda *_: globals().update(honest=lambda: 1.0))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    time.sleep(0.01)


@attack
def answers_for_later_rows(told: Any) -> object:
    """Write answers to every descriptor; the ids are counted up, so the next can be guessed."""
    for descriptor in EVERY_FD:
        for at in range(2_000):
            try:
                os.write(descriptor, b'{"id": %d, "score": 1.0}\n' % at)
            except OSError:
                break


# ------------------------------------------------------------------------------------------ endings


@attack
def leaves(told: Any) -> object:
    os._exit(3)


@attack
def leaves_as_if_all_were_well(told: Any) -> object:
    os._exit(0)


@attack
def kills_itself(told: Any) -> object:
    os.kill(os.getpid(), signal.SIGKILL)


@attack
def ends_by_a_signal_without_a_name(told: Any) -> object:
    os.kill(os.getpid(), 40)


@attack
def reads_at_null(told: Any) -> object:
    ctypes.string_at(0)


@attack
def aborts(told: Any) -> object:
    os.abort()


@attack
def recurses_without_end(told: Any) -> object:
    sys.setrecursionlimit(1 << 30)
    nested: object = []
    for _ in range(1_000_000):
        nested = [nested]
    repr(nested)


@attack
def closes_everything(told: Any) -> object:
    os.closerange(0, 256)
    time.sleep(20)


@attack
def covers_every_descriptor(told: Any) -> object:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(256):
        if descriptor != nothing:
            os.dup2(nothing, descriptor)


@attack
def writes_no_json(told: Any) -> object:
    to_all(b"\xff\xfe\x00 nonsense\n")


@attack
def writes_deep_json(told: Any) -> object:
    to_all(b"[" * 30_000 + b"\n")


@attack
def writes_a_huge_number(told: Any) -> object:
    to_all(b'{"id": 1, "score": ' + b"9" * 20_000 + b"}\n")


@attack
def writes_no_number(told: Any) -> object:
    to_all(b'{"id": 1, "score": NaN}\n')


@attack
def writes_a_list_as_a_failure(told: Any) -> object:
    to_all(b'{"id": 1, "failed": ["raised"]}\n')


@attack
def writes_without_end(told: Any) -> object:
    to_all(b"x" * 60_000, times=10)


def to_all(line: bytes, times: int = 1) -> None:
    for descriptor in EVERY_FD:
        try:
            os.set_blocking(descriptor, False)
            for _ in range(times):
                os.write(descriptor, line)
        except OSError:
            pass
    os._exit(0)


@attack
def floods(told: Any) -> object:
    for _ in range(200_000):
        os.write(1, b"all work and no play makes a dull log\n")
    os._exit(1)


@attack
def matches_without_end(told: Any) -> object:
    re.match(r"(a+)+$", "a" * 60 + "b")


@attack
def counts_without_end(told: Any) -> object:
    return 10**10**9
