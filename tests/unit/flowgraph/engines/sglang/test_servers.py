"""Processes of servers are started, told secrets on their standard input, watched, and always ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowgraph.cluster.plan import Layout
from flowgraph.engines.servers import remote_model, server_process
from flowgraph.engines.servers.server_engine import SCRIPTS, ServerSettings
from flowgraph.engines.servers.server_process import (
    ServerAddress,
    ServerProcess,
    await_ready,
    end_group,
    reserve_port,
    start,
    tail,
)
from flowgraph.engines.sglang import SGLANG, sglang_launch
from flowgraph.engines.sglang.server import BIND, Sglang, SglangModel
from flowgraph.errors import WorkerError
from flowgraph.language.handle import SampleRequest, gather
from flowgraph.language.keys import Key
from flowgraph.lowering.program import Home
from flowgraph.runtime.serving import ServerPlace
from tests.unit.flowgraph.engines.servers.replicas import Tokens

LIMIT_S = 60.0
ROOT = Path(__file__).parents[5]

# Does what the launcher does, with two sleeping children in place of SGLang, one of them in a session of its own.
CHILD = """
import importlib.util, os, pathlib, subprocess, sys, threading, time
spec = importlib.util.spec_from_file_location("launch", {launcher!r})
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
parent = os.getppid()
told = launch.read_line()
threading.Thread(target=launch.end_when_parent_ends, args=(parent,), daemon=True).start()
subprocess.Popen(["sleep", "600"])
print("told", told.decode(), flush=True)
pathlib.Path({ready!r}).touch()
time.sleep(600)
"""


def child(folder: Path) -> list[str]:
    """Return the command of a stand-in for SGLang's launcher."""
    code = CHILD.format(launcher=str(SCRIPTS / Sglang.launcher), ready=str(folder / "ready"))
    return [sys.executable, "-c", code]


def gone(pids: list[int]) -> bool:
    """Wait for processes to be gone; one that only waits to be reaped is."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        there = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not there:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ServerProcess]:
    log = tmp_path / "log"
    door = ServerAddress("http://127.0.0.1:1", "replica 0", SGLANG.newest, key="secret-key", admin_key="secret-admin")
    process = start(child(tmp_path), {"key": door.key, "admin_key": door.admin_key}, os.environ, log)
    await_ready(process, (tmp_path / "ready").exists, door.name, log, (), LIMIT_S)
    with ServerProcess(door, process, log) as server:
        yield server


def test_closing_ends_every_process_of_the_server(started: ServerProcess) -> None:
    pids = [each.pid for each in psutil.Process(started.process.pid).children(recursive=True)]
    assert len(pids) == 1
    started.check()
    started.close()
    assert gone([started.process.pid, *pids])
    started.close()
    with pytest.raises(WorkerError, match="replica 0 ended: killed by SIGKILL"):
        started.check()


def test_a_server_that_ended_is_told_with_its_last_lines_and_without_its_keys(started: ServerProcess) -> None:
    children = [each.pid for each in psutil.Process(started.process.pid).children(recursive=True)]
    os.kill(started.process.pid, signal.SIGTERM)
    started.process.wait(LIMIT_S)
    with pytest.raises(WorkerError) as error:
        started.check()
    assert "killed by SIGTERM" in str(error.value)
    assert "told" in str(error.value)
    assert "secret" not in str(error.value)
    started.close()
    assert gone(children)


def test_nothing_stays_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import json, os, sys, time; from pathlib import Path\n"
        "from flowgraph.engines.servers.server_process import start, await_ready\n"
        f"process = start(json.loads(sys.argv[1]), {{}}, os.environ, Path({str(tmp_path / 'log')!r}))\n"
        f"await_ready(process, Path({str(tmp_path / 'ready')!r}).exists, 'it', Path('/'), (), {LIMIT_S})\n"
        "print(process.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, json.dumps(child(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        leader = int(parent.stdout.readline())
        pids = [leader, *(each.pid for each in psutil.Process(leader).children(recursive=True))]
        assert len(pids) == 2
        parent.send_signal(signal.SIGKILL)
        parent.wait(LIMIT_S)
    assert gone(pids)


# What SGLang's launcher does with the processes that it spawns, which map memory by a name; one child is no Python.
SPAWNS = """
import importlib.util, mmap, multiprocessing, os, pathlib, subprocess, sys, time
spec = importlib.util.spec_from_file_location("launch", sys.argv[1])
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
if __name__ == "__mp_main__":
    launch.end_with_parent()

def work(folder, shared):
    with open(shared, "r+b") as file, mmap.mmap(file.fileno(), 4096):
        pathlib.Path(folder, "ready").touch()
        time.sleep(600)

if __name__ == "__main__":
    plain = subprocess.Popen(["sleep", "600"])
    spawned = multiprocessing.get_context("spawn").Process(target=work, args=sys.argv[2:])
    spawned.start()
    pathlib.Path(sys.argv[2], "pids").write_text(f"{plain.pid} {spawned.pid}")
    spawned.join()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no such folder")
def test_nothing_stays_when_the_first_process_of_a_server_is_killed_alone(tmp_path: Path) -> None:
    shared = Path(f"/dev/shm/flowgraph-test-{os.getpid()}")
    shared.write_bytes(bytes(4096))
    (tmp_path / "spawns.py").write_text(SPAWNS)
    command = [sys.executable, str(tmp_path / "spawns.py"), str(SCRIPTS / Sglang.launcher), str(tmp_path), str(shared)]
    process = start(command, {}, os.environ, tmp_path / "log")
    try:
        await_ready(process, (tmp_path / "ready").exists, "it", tmp_path / "log", (), LIMIT_S)
        process.kill()
        process.wait(LIMIT_S)
        assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])
        assert not shared.exists()
    finally:
        end_group(process)
        shared.unlink(missing_ok=True)


# A server that answers that it is well, and whose only other process is the one that would give samples.
HANGS = """
import os, pathlib, socketserver, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        pathlib.Path(sys.argv[1], "asked").touch()
        time.sleep(600)

    def log_message(self, *told):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
child = os.fork()
if not child:
    time.sleep(600)
pathlib.Path(sys.argv[1], "ready.part").write_text(f"{server.server_port} {child}")
pathlib.Path(sys.argv[1], "ready.part").rename(pathlib.Path(sys.argv[1], "ready"))
server.serve_forever()
"""


def test_a_server_that_a_signal_has_stopped_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_model, "BEAT_S", 0.1)
    monkeypatch.setattr(remote_model, "ANSWER_S", 0.3)
    monkeypatch.setattr(server_process, "STOPPED_S", 0.3)
    process = start([sys.executable, "-c", HANGS, str(tmp_path)], {}, os.environ, tmp_path / "log")
    asked, one = tmp_path / "asked", SampleRequest((1, 2), 0, 0, 4, 1.0, Key())
    try:
        await_ready(process, (tmp_path / "ready").exists, "it", tmp_path / "log", (), LIMIT_S)
        port, child = map(int, (tmp_path / "ready").read_text().split())
        door = ServerAddress(f"http://127.0.0.1:{port}", "replica 0", SGLANG.newest)
        own = ServerProcess(door, process, tmp_path / "log")
        for pid, known, says in (
            (child, [own], rf"\({child}\) of replica 0 is stopped, as by SIGSTOP"),  # its first process answers
            (process.pid, [], "replica 0 has not answered for 2 s"),  # of somebody else: nothing but that is seen
        ):
            model, stopping = SglangModel([door], Tokens(), servers=known, limit_s=LIMIT_S), until(asked, pid)
            with pytest.raises(WorkerError, match=says):
                gather(model, [one])
            model.close()
            stopping.join()
            os.kill(pid, signal.SIGCONT)
            asked.unlink()
    finally:
        end_group(process)


def until(asked: Path, pid: int) -> threading.Thread:
    """Stop a process once a server was asked."""

    def stop() -> None:
        while not asked.exists():
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    return stopping


def test_no_key_stands_in_a_command_line_or_an_environment(started: ServerProcess) -> None:
    processes = [psutil.Process(started.process.pid), *psutil.Process(started.process.pid).children(recursive=True)]
    for each in processes:
        assert "secret" not in " ".join([*each.cmdline(), *each.environ().values()])
    assert "secret" not in repr(started.door)
    assert (started.log.stat().st_mode & 0o777) == 0o600


def test_a_process_that_ends_at_once_is_told_with_its_last_lines(tmp_path: Path) -> None:
    process = start([sys.executable, "-c", "raise SystemExit('no such model')"], {}, os.environ, tmp_path / "log")
    with pytest.raises(WorkerError) as error:
        await_ready(process, lambda: False, "replica 0", tmp_path / "log", (), LIMIT_S)
    end_group(process)
    assert str(error.value).startswith("replica 0 could not be started: exit status 1\n    no such model\n")


def test_a_process_that_is_never_ready_is_told(tmp_path: Path) -> None:
    process = start(["sleep", "600"], {}, os.environ, tmp_path / "log")
    server, told = (
        ServerProcess(ServerAddress("", "replica 0", ""), process, tmp_path / "log"),
        "replica 0 is not ready after 0 s",
    )
    with server, pytest.raises(WorkerError, match=told):
        await_ready(process, lambda: False, "replica 0", tmp_path / "log", (), 0.2)


def test_a_port_in_use_is_refused_and_a_held_one_lets_a_server_listen() -> None:
    told = r"replica 0 could not be started: 127\.0\.0\.1:.*in use"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(WorkerError, match=told):
        reserve_port("127.0.0.1", taken.getsockname()[1], "replica 0")
    with reserve_port("127.0.0.1", 0, "replica 0") as held:
        socket.create_server(("127.0.0.1", held.getsockname()[1])).close()


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {n}\n\n" for n in range(5000)) + "ends with secret-key")
    assert tail(tmp_path / "log", ("secret-key",))[-2:] == ["line 4999", "ends with ***"]
    assert tail(tmp_path / "none") == []


def test_an_engine_that_is_not_installed_is_told_with_how_to_install_it(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(WorkerError, match="hint: flowgraph engines install sglang-cpu"):
        Sglang().serve(tiny_folder, log=tmp_path / "log", cache=tmp_path)


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_parts: tuple[Any, Any]) -> Path:
    from flowgraph.models import save

    return save(*tiny_parts, tmp_path / "model")


def test_versions_that_are_known_unknown_and_too_old() -> None:
    assert SGLANG.known(SGLANG.newest, "cpu") == (SGLANG.table[SGLANG.newest], "")
    assert SGLANG.known(SGLANG.newest, "cuda")[1] == f"SGLang {SGLANG.newest} was not tried here on cuda"
    assert SGLANG.known("0.5.19", "cpu")[0].session is False
    assert SGLANG.known("9.9.9.post1", "cpu")[0] == SGLANG.table[SGLANG.newest]
    assert "9.9.9.post1 is not in the table" in SGLANG.known("9.9.9.post1", "cpu")[1]
    with pytest.raises(WorkerError, match=f"SGLang 0.4.9 is too old: {SGLANG.oldest} is the oldest"):
        SGLANG.known("0.4.9", "cpu")
    with pytest.raises(WorkerError, match="too old"):
        SGLANG.known("", "cpu")


def test_the_command_line_of_a_server() -> None:
    on_cpu = Sglang().arguments(
        Path("m"), ServerSettings(seed=3, sleeps=True), "cpu", {"max_position_embeddings": 128}, 7
    )
    assert "--enable-memory-saver" not in on_cpu
    assert on_cpu[on_cpu.index("--context-length") + 1] == "144"
    assert on_cpu[on_cpu.index("--weight-version") + 1] == "7"
    assert on_cpu[on_cpu.index("--attention-backend") + 1] == "torch_native"
    on_gpus = Sglang().arguments(
        Path("m"), ServerSettings("bfloat16", 4, 0.4, repeatable=True, sleeps=True), "cuda", {}, 0
    )
    assert {"--enable-memory-saver", "--enable-deterministic-inference"} <= set(on_gpus)
    assert "--enable-weights-cpu-backup" not in on_gpus
    frozen = Sglang().arguments(Path("m"), ServerSettings(sleeps=True, keeps=True), "cuda", {}, 0)
    assert "--enable-weights-cpu-backup" in frozen
    assert on_gpus[on_gpus.index("--tp-size") + 1] == "4"
    assert on_gpus[on_gpus.index("--mem-fraction-static") + 1] == "0.4"
    assert "--attention-backend" not in on_gpus
    assert "--context-length" not in on_gpus


def test_the_environment_of_a_server_is_not_that_of_a_trainer() -> None:
    ours = {"RANK": "1", "MASTER_PORT": "1", "PYTHONPATH": "x", "SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "HOME": "h"}
    on_cpu = Sglang().environment(ours, ServerSettings(threads=2), "cpu", (), "127.0.0.1")
    assert BIND not in on_cpu
    assert Sglang().environment(ours, ServerSettings(tensor=2), "cpu", (), "127.0.0.1")[BIND].count("|") == 1
    assert on_cpu.keys() & ours.keys() == {"HOME"}
    assert on_cpu["OMP_NUM_THREADS"] == "2"
    on_gpus = Sglang().environment(ours, ServerSettings(), "cuda", ("3", "GPU-1"), "10.0.0.1")
    assert on_gpus["CUDA_VISIBLE_DEVICES"] == "3,GPU-1"
    assert "SGLANG_USE_CPU_ENGINE" not in on_gpus
    assert "GLOO_SOCKET_IFNAME" not in on_gpus


def test_a_kernel_that_is_absent_says_so_when_called() -> None:
    absent = sglang_launch.Absent("sgl_kernel")
    assert absent.some_kernel.__name__ == "some_kernel"
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.some_kernel: this kernel has no build for a CPU"):
        absent.some_kernel(1, two=2)
    assert not hasattr(absent, "__wrapped__")


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7"])
def test_a_replica_listens_where_its_post_says(tmp_path: Path, host: str) -> None:
    class Told(Sglang):
        """Says where it would listen."""

        def serve(self, *given: Any, **about: Any) -> ServerProcess:
            raise WorkerError(about["host"])

    post = ServerPlace(Home("policy", "draw", "sglang", Layout(data=1)), "cpu", host=host)
    with pytest.raises(WorkerError, match=host):
        Told().start(tmp_path, post, seed=0, threads=1)
