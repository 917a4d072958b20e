"""What is seen of a run's processes from outside: stopped ones, Ray's own that ended, whom to kill. No Ray starts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from flowgraph.errors import WorkerError
from flowgraph.runtime.ray import supervision
from flowgraph.runtime.ray.device import PoolRank
from flowgraph.runtime.ray.supervision import Member, PendingCall, Supervisor

SEAT = PoolRank("train", 1, 2, "cpu", (), ())
Sleep = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleep]:
    """Yield `sleep(name)`: a process of this name that does nothing; only such processes count as started by this one.

    Another test of this worker may have left a Ray running.
    """
    begun = list[subprocess.Popen[bytes]]()

    def children(_: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [psutil.Process(process.pid) for process in begun]

    monkeypatch.setattr(psutil.Process, "children", children)

    def sleep(name: str) -> subprocess.Popen[bytes]:
        (tmp_path / name).symlink_to("/bin/sleep")
        begun.append(subprocess.Popen(["sleep", "60"], executable=tmp_path / name))
        assert psutil.Process(begun[-1].pid).name() == name
        return begun[-1]

    yield sleep
    for each in begun:
        each.kill()
        each.wait()


def told(watched: Supervisor, pending: tuple[PendingCall, ...] = ()) -> str:
    """Return the error that a look at the processes raises, without their ids; "" if all is well."""
    try:
        watched.check(pending)
    except WorkerError as error:
        return re.sub(r"\(\d+\)", "(N)", str(error))
    return ""


def test_a_ray_that_runs_is_not_complained_of(sleep: Sleep) -> None:
    sleep("gcs_server")
    sleep("raylet")
    assert told(Supervisor((), started=True)) == ""


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_process_of_rays_own_that_ended_is_named(sleep: Sleep, name: str) -> None:
    processes = {each: sleep(each) for each in ("gcs_server", "raylet")}
    processes[name].kill()
    while psutil.Process(processes[name].pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert told(Supervisor((), started=True)) == (
        f"Ray's {name} ended during the run\n"
        "  hint: out of memory, a crash in native code, or killed; `flowgraph plan` forecasts memory"
    )


def test_a_ray_that_ran_before_is_on_another_machine_perhaps() -> None:
    assert told(Supervisor(())) == ""


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until it is."""
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_a_stopped_process_is_named_once_it_is_stopped_for_long(sleep: Sleep, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(sleep("ray::IDLE"))
    pending = (PendingCall(None, "score (host), step 3, grpo.py:17", None),)
    watched = Supervisor(())
    assert told(watched, pending) == ""
    monkeypatch.setattr(supervision, "STOPPED_S", 0.0)
    assert told(watched, pending) == (
        "a host process (N) is stopped, as by SIGSTOP\n    its task was score (host), step 3, grpo.py:17"
    )


def test_a_process_that_goes_on_is_forgotten(sleep: Sleep, monkeypatch: pytest.MonkeyPatch) -> None:
    process = sleep("ray::IDLE")
    stop(process)
    watched = Supervisor(())
    assert told(watched) == ""
    process.send_signal(signal.SIGCONT)
    while psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
        time.sleep(0.01)
    monkeypatch.setattr(supervision, "STOPPED_S", 0.0)
    assert told(watched) == ""
    stop(process)
    monkeypatch.setattr(supervision, "STOPPED_S", 4.0)
    assert told(watched) == ""


@pytest.mark.parametrize(("name", "shown"), [("raylet", "Ray's raylet (N)"), ("sleeper", "")])
def test_rays_own_are_looked_at_and_a_users_are_not(
    sleep: Sleep, monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    stop(sleep(name))
    monkeypatch.setattr(supervision, "STOPPED_S", -1.0)
    assert told(Supervisor(())) == (f"{shown} is stopped, as by SIGSTOP" if shown else "")


def test_an_actor_that_does_not_answer_has_one_heartbeat_under_way(
    sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[Member]()

    def ask(member: Member) -> None:
        sent.append(member)

    monkeypatch.setattr(Member, "ask", ask)
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([], refs))
    watched = Supervisor((Member(SEAT, None, 0),))
    for _ in range(3):
        assert told(watched) == ""
    assert len(sent) == 1


def test_a_member_is_told_by_its_seat_and_its_process_if_that_is_here() -> None:
    assert str(Member(SEAT, None, 4711)) == "rank 1 of pool `train` (process 4711)"
    assert str(Member(SEAT, None, 0)) == "rank 1 of pool `train`"


@pytest.mark.parametrize(("title", "ends"), [("ray::RankActor", True), ("another", False)])
def test_a_member_is_ended_though_it_is_stopped_but_a_process_that_has_its_id_now_is_not(
    title: str, ends: bool
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", title])
    try:
        stop(process)
        Member(SEAT, None, process.pid).end()
        if ends:
            assert process.wait(10) == -signal.SIGKILL
        else:
            assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    finally:
        process.kill()
        process.wait()


def test_a_member_that_is_gone_or_elsewhere_is_no_error() -> None:
    process = subprocess.Popen(["/bin/sleep", "0"])
    process.wait()
    Member(SEAT, None, process.pid).end()
    Member(SEAT, None, 0).end()
