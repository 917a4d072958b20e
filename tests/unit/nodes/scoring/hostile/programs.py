"""A hostile program: it does the attack that its input names, and prints `through` where that succeeded.

`test_hostile_programs` runs this file as what a model wrote, once for each attack. Nothing here harms a machine that
does not confine it: bombs are small, memory is asked for and not touched, and what is left behind ends by itself.
"""

import ctypes
import fcntl
import json
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

ATTACKS = {}
libc = ctypes.CDLL(None, use_errno=True)
LONG_S = 1.5  # over the limit of time of a test here


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def done(call):
    """Tell if a system call did what it was asked; raise what it answered otherwise."""
    if call < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


# ------------------------------------------------------------------------------------------ reading


@attack
def reads_a_secret_file(told):
    return open(told["secret"]).read() == "hunter2"


@attack
def reads_an_account_file(told):
    return open("/etc/passwd").read()


@attack
def lists_the_root(told):
    return os.listdir("/")


@attack
def lists_the_home_folder(told):
    return os.listdir(told["home"]) is not None


@attack
def lists_the_working_folder_of_the_run(told):
    return os.listdir(told["folder"])


@attack
def walks_to_a_secret(told):
    return [name for _, _, files in os.walk(told["folder"]) for name in files if name == "secret.txt"]


@attack
def reads_through_a_link(told):
    os.symlink(told["secret"], "link")
    return open("link").read()


@attack
def reads_through_a_hard_link(told):
    os.link(told["secret"], os.path.join(told["beside"], "hard"))
    return open(os.path.join(told["beside"], "hard")).read()


@attack
def reopens_a_path_descriptor(told):
    return open(f"/proc/self/fd/{os.open(told['secret'], os.O_PATH)}").read()


@attack
def reads_through_its_own_root(told):
    return open("/proc/self/root" + told["secret"]).read()


@attack
def reads_a_database(told):
    return sqlite3.connect(told["database"]).execute("select x from t").fetchall()


@attack
def reads_a_key_of_the_environment(told):
    return os.environ["HOSTILE_SECRET"]


@attack
def reads_its_parents_environment(told):
    return open(f"/proc/{os.getppid()}/environ", "rb").read()


@attack
def reads_the_drivers_memory_map(told):
    return open(f"/proc/{told['driver']}/maps").read(10)


@attack
def lists_the_drivers_descriptors(told):
    return os.listdir(f"/proc/{told['driver']}/fd")


@attack
def lists_processes(told):
    return [one for one in os.listdir("/proc") if one.isdigit()]


@attack
def reads_its_own_memory_map(told):
    return open("/proc/self/maps").read(10)


# ------------------------------------------------------------------------------------------ writing


@attack
def overwrites_a_file(told):
    return open(told["target"], "w").write("taken")


@attack
def appends_to_a_file(told):
    return open(told["target"], "a").write("taken")


@attack
def truncates_a_file(told):
    return os.truncate(told["target"], 0) is None


@attack
def removes_a_file(told):
    return os.unlink(told["target"]) is None


@attack
def renames_a_file(told):
    return os.rename(told["target"], told["target"] + "x") is None


@attack
def replaces_a_file(told):
    open("mine", "w").write("taken")
    return os.replace("mine", told["target"]) is None


@attack
def overwrites_through_a_link(told):
    os.symlink(told["target"], "out")
    return open("out", "w").write("taken")


@attack
def changes_the_mode_of_a_file(told):
    return os.chmod(told["target"], 0o777) is None


@attack
def changes_the_time_of_a_file(told):
    return os.utime(told["target"], (5, 5)) is None


@attack
def makes_a_file_outside(told):
    return open(os.path.join(told["beside"], "new"), "w").write("taken")


@attack
def makes_a_folder_at_home(told):
    return os.mkdir(os.path.join(told["home"], "new")) is None


@attack
def makes_a_link_outside(told):
    return os.symlink("/etc/passwd", os.path.join(told["beside"], "link")) is None


@attack
def writes_to_the_systems_temporary_folder(told):
    handle, path = tempfile.mkstemp(dir="/tmp")
    os.unlink(path)
    return handle


@attack
def writes_to_shared_memory(told):
    handle, path = tempfile.mkstemp(dir="/dev/shm")
    os.unlink(path)
    return handle


@attack
def writes_beside_pythons_modules(told):
    path = os.path.join(os.path.dirname(json.__file__), f"hostile-{os.getpid()}")
    open(path, "w").write("taken")
    return os.unlink(path) is None


@attack
def writes_a_file_without_end(told):
    with open("large", "wb") as file:
        file.writelines(bytes(1 << 20) for _ in range(20))
    return True


@attack
def makes_a_file_without_a_folder(told):
    return os.memfd_create("hidden")


# ------------------------------------------------------------------------------------------ network


@attack
def connects(told):
    return socket.create_connection(("127.0.0.1", told["port"]), 1)


@attack
def connects_by_a_file(told):
    return socket.socket(socket.AF_UNIX).connect(told["socket"]) is None


@attack
def connects_by_an_abstract_name(told):
    return socket.socket(socket.AF_UNIX).connect(told["abstract"]) is None


@attack
def sends_a_datagram(told):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"hunter2", ("127.0.0.1", told["port"]))


@attack
def listens(told):
    return socket.create_server(("127.0.0.1", 0))


@attack
def asks_the_kernel_for_addresses(told):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


# ------------------------------------------------------------------------------------------ processes


def stay(told):
    os.execvp("sleep", told["marker"].split())


@attack
def forks(told):
    return os.fork() or os._exit(0)


@attack
def is_a_fork_bomb(told):
    children = [os.fork() for _ in range(4)]  # sixteen of them; without an end it would be as contained
    if 0 in children:
        stay(told)
    return True


@attack
def leaves_a_daemon(told):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(1)
            stay(told)
        os._exit(0)
    os.close(write)
    return os.read(read, 1) == b""


@attack
def forks_by_the_kernels_call(told):
    process = libc.syscall({"x86_64": 57, "aarch64": 220}[os.uname().machine], 17, 0, 0, 0, 0)
    if process == 0:
        os._exit(0)
    return done(process)


@attack
def spawns_a_program(told):
    return os.posix_spawnp("sleep", told["marker"].split(), dict(os.environ))


@attack
def runs_a_shell(told):
    return os.system("true") == 0


@attack
def starts_a_background_process(told):
    return subprocess.Popen(told["marker"].split())


@attack
def starts_a_worker(told):
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
    return worker.start() is None


@attack
def becomes_another_program(told):
    os.execv("/bin/echo", ["echo", "through"])


@attack
def floods_with_threads(told):
    threading.stack_size(65_536)
    threads = [threading.Thread(target=time.sleep, args=(LONG_S,)) for _ in range(1_500)]
    for thread in threads:
        thread.start()
    time.sleep(LONG_S)
    return True


# ------------------------------------------------------------------------------------------ other processes


@attack
def may_signal_its_parent(told):
    return os.kill(os.getppid(), 0) is None


@attack
def may_signal_its_parents_group(told):
    return os.killpg(os.getpgid(os.getppid()), 0) is None


@attack
def kills_another(told):
    return os.kill(told["victim"], signal.SIGTERM) is None


@attack
def stops_another(told):
    return os.kill(told["victim"], signal.SIGSTOP) is None


@attack
def kills_another_by_its_descriptor(told):
    return signal.pidfd_send_signal(os.pidfd_open(told["victim"]), signal.SIGTERM) is None


@attack
def kills_another_by_a_pipe_of_its_own(told):
    read, write = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, told["victim"])
    fcntl.fcntl(read, 10, signal.SIGTERM)  # F_SETSIG
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write, b"x")
    time.sleep(0.05)
    os.kill(told["victim"], 0)  # what cannot be signalled cannot be asked about either
    return True


@attack
def traces_another(told):
    return done(libc.ptrace(0x4206, told["victim"], None, None))  # PTRACE_SEIZE


@attack
def reads_anothers_memory(told):
    return done(libc.process_vm_readv(told["victim"], None, 0, None, 0, 0))


@attack
def takes_its_parents_descriptor(told):
    return done(libc.syscall(438, os.pidfd_open(os.getppid()), 0, 0))  # pidfd_getfd


@attack
def slows_another(told):
    return os.setpriority(os.PRIO_PROCESS, told["victim"], 19) is None


@attack
def limits_another(told):
    return resource.prlimit(told["victim"], resource.RLIMIT_NOFILE, (3, 3))


@attack
def offers_another_to_the_kernel(told):
    return open(f"/proc/{told['victim']}/oom_score_adj", "w").write("1000")


# ------------------------------------------------------------------------------------------ time, memory, output


@attack
def counts_without_end(told):
    end_s = time.monotonic() + LONG_S
    while time.monotonic() < end_s:
        pass
    return True


@attack
def sleeps_without_end(told):
    return time.sleep(LONG_S) is None


@attack
def ignores_every_signal(told):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    return time.sleep(LONG_S) is None


@attack
def leaves_a_thread_that_does_not_end(told):
    threading.Thread(target=lambda: (time.sleep(LONG_S), print("through", flush=True))).start()


@attack
def stays_after_closing_its_output(told):
    copy = os.dup(1)
    os.close(1)
    time.sleep(LONG_S)
    return os.dup2(copy, 1) == 1


@attack
def computes_without_end(told):
    return pow(3, 1 << 23)


@attack
def asks_for_much_memory(told):
    return mmap.mmap(-1, 3 << 29, flags=mmap.MAP_PRIVATE)


@attack
def asks_for_much_shared_memory(told):
    return mmap.mmap(-1, 5 << 30)


@attack
def makes_a_long_text(told):
    return len(bytes(3 << 29))


@attack
def floods_its_output(told):
    for _ in range(48):
        print("x" * 65_536)
    return True


@attack
def floods_its_log(told):
    for _ in range(48):
        print("x" * 65_536, file=sys.stderr)
    return True


@attack
def opens_many_files(told):
    return [open("/dev/null") for _ in range(200)]


@attack
def raises_its_limits(told):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    return True


@attack
def makes_a_namespace(told):
    return done(libc.unshare(0x10000000))


@attack
def changes_its_root(told):
    return os.chroot(".") is None


@attack
def asks_for_a_ring(told):
    return done(libc.syscall(425, 1, ctypes.create_string_buffer(256)))


@attack
def shares_memory_by_a_key(told):
    segment = libc.shmget(0, 4096, 0o1600)
    return done(segment) and done(libc.shmctl(segment, 0, None))


if __name__ == "__main__":
    given = json.loads(sys.stdin.read())
    if ATTACKS[given["attack"]](given):
        print("through", flush=True)
