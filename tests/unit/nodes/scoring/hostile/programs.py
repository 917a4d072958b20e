"""Programs as a model might write them: one function for each, which returns True where it got through.

`test_hostile_programs` sends this file as a response and has a function of it called, as a test of `prime_code` does.
Each is bounded by itself, so that it does no harm where nothing confines it: eight processes, untouched memory, a
second and a half. What takes long to import is imported where it is used.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
Facts = dict[str, Any]
BREED = 8
MANY_THREADS = 700  # of 8 MiB of address space each
LARGE_BYTES, SHARED_BYTES, FILE_BYTES, FLOOD_BYTES = 1_200 << 20, 5 << 30, 24 << 20, 2 << 20


def honest(facts: Facts) -> bool:
    return not os.listdir(".")  # an earlier program left nothing


# ------------------------------------------------------------------------------------------ fork bombs


def forks(facts: Facts) -> bool:
    for _ in range(BREED):
        if os.fork() == 0:
            time.sleep(facts["bomb_s"])
            os._exit(0)
    return True


def forks_in_a_tree(facts: Facts) -> bool:
    for depth in range(3):
        if os.fork() == 0 and depth == 2:
            time.sleep(facts["bomb_s"])
    if os.getpgid(0) != os.getpid():
        os._exit(0)
    return True


def clones_by_number(facts: Facts) -> bool:
    call = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    if (child := libc.syscall(call, int(signal.SIGCHLD), 0, 0, 0, 0)) == 0:
        os._exit(0)
    return bool(child > 0)


def spawns(facts: Facts) -> bool:
    return os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}) > 0


def starts_a_shell(facts: Facts) -> bool:
    return os.system("true") == 0


def starts_a_pool(facts: Facts) -> bool:
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return process.exitcode == 0


def becomes_another_program(facts: Facts) -> bool:
    print(flush=True)
    os.execv("/bin/sh", ["sh", "-c", "echo true"])


def starts_many_threads(facts: Facts) -> bool:
    threading.stack_size(8 << 20)
    for _ in range(MANY_THREADS):
        threading.Thread(target=time.sleep, args=(facts["bomb_s"],), daemon=True).start()
    return True


# ------------------------------------------------------------------------------------------ memory and disk


def allocates_a_lot(facts: Facts) -> bool:
    return len(bytes(LARGE_BYTES)) == LARGE_BYTES


def maps_a_lot(facts: Facts) -> bool:
    return len(mmap.mmap(-1, LARGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) == LARGE_BYTES


def shares_a_lot(facts: Facts) -> bool:
    return len(mmap.mmap(-1, SHARED_BYTES)) == SHARED_BYTES


def allocates_in_many_pieces(facts: Facts) -> bool:
    return len([bytes(1 << 24) for _ in range(LARGE_BYTES >> 24)]) > 0


def makes_a_file_in_memory(facts: Facts) -> bool:
    os.ftruncate(os.memfd_create("hostile"), FILE_BYTES)
    return True


def writes_a_huge_file(facts: Facts) -> bool:
    with open("huge", "wb") as file:
        file.seek(FILE_BYTES)
        file.write(b"x")
    return True


def opens_too_many_files(facts: Facts) -> bool:
    return len([os.open("/dev/null", os.O_RDONLY) for _ in range(100)]) == 100


def raises_its_limits(facts: Facts) -> bool:
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return len(bytes(LARGE_BYTES)) == LARGE_BYTES


# ------------------------------------------------------------------------------------------ the network


def connects(facts: Facts) -> bool:
    return socket.create_connection(("127.0.0.1", facts["port"]), 1).fileno() >= 0


def connects_in_a_loop_of_events(facts: Facts) -> bool:
    import asyncio

    asyncio.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", facts["port"]), 1))
    return True


def sends_a_datagram(facts: Facts) -> bool:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"taken", ("127.0.0.1", facts["port"])) == 5


def connects_by_multipath(facts: Facts) -> bool:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(("127.0.0.1", facts["port"]))
    return True


def connects_to_a_socket_file(facts: Facts) -> bool:
    socket.socket(socket.AF_UNIX).connect(facts["socket"])
    return True


def connects_to_an_abstract_socket(facts: Facts) -> bool:
    socket.socket(socket.AF_UNIX).connect(facts["abstract"])
    return True


def asks_the_kernel_for_its_interfaces(facts: Facts) -> bool:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno() >= 0


def listens(facts: Facts) -> bool:
    server = socket.socket()
    server.listen()
    return bool(server.getsockname()[1])


def asks_for_a_ring(facts: Facts) -> bool:
    return bool(libc.syscall(425, 1, ctypes.create_string_buffer(256)) >= 0)  # io_uring_setup


# ------------------------------------------------------------------------------------------ reading


def reads_the_accounts(facts: Facts) -> bool:
    return bool(open("/etc/passwd").read())


def reads_a_file_of_etc_by_a_longer_path(facts: Facts) -> bool:
    return bool(open("/usr/../etc/group").read())


def lists_the_home_folder(facts: Facts) -> bool:
    return bool(os.listdir(facts["home"]) is not None)


def lists_the_temporary_folder(facts: Facts) -> bool:
    return bool(os.listdir("/tmp"))


def lists_the_run_folder(facts: Facts) -> bool:
    return bool(os.listdir(facts["folder"]))


def reads_a_secret(facts: Facts) -> bool:
    return open(facts["secret"]).read() == "hunter2"


def reads_through_its_own_root(facts: Facts) -> bool:
    return open("/proc/self/root" + facts["secret"]).read() == "hunter2"


def reopens_a_path_descriptor(facts: Facts) -> bool:
    path = os.open(facts["secret"], os.O_PATH)
    return open(f"/proc/self/fd/{path}").read() == "hunter2"


def reads_through_a_link(facts: Facts) -> bool:
    os.symlink(facts["secret"], "link")
    return open("link").read() == "hunter2"


def reads_through_a_linked_folder(facts: Facts) -> bool:
    os.symlink(facts["folder"], "folder")
    return open("folder/secret.txt").read() == "hunter2"


def reads_the_drivers_environment(facts: Facts) -> bool:
    return bool(open(f"/proc/{facts['driver']}/environ", "rb").read(10))


def reads_the_drivers_memory_map(facts: Facts) -> bool:
    return bool(open(f"/proc/{facts['driver']}/maps").read(10))


def lists_the_drivers_descriptors(facts: Facts) -> bool:
    return bool(os.listdir(f"/proc/{facts['driver']}/fd"))


def lists_its_parents_descriptors(facts: Facts) -> bool:
    return bool(os.listdir(f"/proc/{os.getppid()}/fd"))


# ------------------------------------------------------------------------------------------ writing outside


def overwrites_a_file(facts: Facts) -> bool:
    return open(facts["target"], "w").write("taken") == 5


def cuts_a_file_short(facts: Facts) -> bool:
    os.truncate(facts["target"], 0)
    return True


def removes_a_file(facts: Facts) -> bool:
    os.unlink(facts["target"])
    return True


def moves_a_file(facts: Facts) -> bool:
    os.rename(facts["target"], facts["target"] + "x")
    return True


def opens_a_file_to_everyone(facts: Facts) -> bool:
    os.chmod(facts["target"], 0o777)
    return True


def makes_a_link_outside(facts: Facts) -> bool:
    os.symlink("/", os.path.join(facts["beside"], "new"))
    return True


def links_a_file_into_its_scratch(facts: Facts) -> bool:
    os.link(facts["secret"], os.path.join(facts["beside"], "hard"))
    return True


def makes_a_pipe_outside(facts: Facts) -> bool:
    os.mkfifo(os.path.join(facts["beside"], "pipe"))
    return True


def writes_to_the_home_folder(facts: Facts) -> bool:
    return open(os.path.join(facts["home"], "authorized_keys"), "w").write("me") == 2


def writes_to_the_temporary_folder(facts: Facts) -> bool:
    import tempfile

    descriptor, path = tempfile.mkstemp(dir="/tmp")
    os.unlink(path)
    return descriptor >= 0


def writes_to_shared_memory(facts: Facts) -> bool:
    path = f"/dev/shm/hostile-{os.getpid()}"
    open(path, "w").close()
    os.unlink(path)
    return True


# ------------------------------------------------------------------------------------------ other processes


def kills_its_parent(facts: Facts) -> bool:
    os.kill(os.getppid(), signal.SIGKILL)
    return True


def signals_the_driver(facts: Facts) -> bool:
    os.kill(facts["driver"], 0)
    return True


def kills_another(facts: Facts) -> bool:
    os.kill(facts["victim"], signal.SIGTERM)
    return True


def stops_another(facts: Facts) -> bool:
    os.kill(facts["victim"], signal.SIGSTOP)
    return True


def signals_by_descriptor(facts: Facts) -> bool:
    signal.pidfd_send_signal(os.pidfd_open(facts["victim"]), signal.SIGCONT)
    return True


def traces_another(facts: Facts) -> bool:
    return bool(libc.ptrace(0x4206, facts["victim"], 0, 0) == 0)  # PTRACE_SEIZE


def reads_the_drivers_memory(facts: Facts) -> bool:
    return bool(libc.process_vm_readv(facts["driver"], None, 0, None, 0, 0) >= 0)


def limits_another(facts: Facts) -> bool:
    return bool(resource.prlimit(facts["victim"], resource.RLIMIT_NOFILE, (64, 64)))


def volunteers_another_for_the_killer(facts: Facts) -> bool:
    return open(f"/proc/{facts['victim']}/oom_score_adj", "w").write("900") == 3


def makes_a_namespace(facts: Facts) -> bool:
    return bool(libc.unshare(0x10000000) == 0)  # CLONE_NEWUSER


def leaves_a_child(facts: Facts) -> bool:
    import subprocess

    return subprocess.Popen(facts["marker"].split()).pid > 0


def leaves_a_daemon(facts: Facts) -> bool:
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execvp("sleep", facts["marker"].split())
    os.close(write)
    return os.read(read, 1) == b""  # the other end is closed when the daemon runs its program


def leaves_one_in_the_background(facts: Facts) -> bool:
    return os.system(f"nohup {facts['marker']} >/dev/null 2>&1 &") == 0


# ------------------------------------------------------------------------------------------ output floods


def floods_its_output(facts: Facts) -> bool:
    for _ in range(FLOOD_BYTES >> 10):
        print("x" * 1023)
    return True


def floods_one_line(facts: Facts) -> bool:
    sys.stdout.write("x" * FLOOD_BYTES)
    return True


def floods_its_errors(facts: Facts) -> bool:
    for _ in range(FLOOD_BYTES >> 10):
        os.write(2, b"x" * 1024)
    return True


# ------------------------------------------------------------------------------------------ time bombs


def sleeps(facts: Facts) -> bool:
    time.sleep(facts["bomb_s"])
    return True


def works_without_end(facts: Facts) -> bool:
    end_s = time.monotonic() + facts["bomb_s"]
    while time.monotonic() < end_s:
        pass
    return True


def catches_what_stops_it(facts: Facts) -> bool:
    end_s = time.monotonic() + facts["bomb_s"]
    while time.monotonic() < end_s:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001
            continue
    return True


def ignores_every_signal(facts: Facts) -> bool:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    select.select([], [], [], facts["bomb_s"])
    return True


def answers_and_stays(facts: Facts) -> bool:
    threading.Thread(target=time.sleep, args=(facts["bomb_s"],)).start()
    return True


def waits_for_a_lock(facts: Facts) -> bool:
    return not threading.Event().wait(facts["bomb_s"])
