"""The accountant of the benchmark: it counts what outlives its parent, and what no parent waits for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cost import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cost.py"
BURN = """
import os, signal, time
def burn(seconds):
    while time.process_time() < seconds: pass
"""
BURN_S = 0.3


def test_what_outlives_its_parent_is_counted(tmp_path: Path) -> None:
    script = f"""
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent: time.sleep(0.001)
    burn({BURN_S})
    os._exit(0)
os._exit(3)
"""
    cost = measured(tmp_path, script)
    assert cost["code"] == 3
    assert cost["killed"] == []
    assert BURN_S <= cost["cpu_s"] < BURN_S + 1.0
    assert cost["unwaited_s"] == 0.0


def test_what_no_parent_waits_for_is_counted(tmp_path: Path) -> None:
    """A parent that ignores SIGCHLD, as Ray's daemon does, leaves the kernel no account of its children."""
    script = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if not child:
    burn(1.0)
    os._exit(0)
while os.path.exists(f"/proc/{child}"): time.sleep(0.01)
"""
    cost = measured(tmp_path, script)
    assert 0.5 <= cost["unwaited_s"] < 2.0
    assert cost["user_s"] + cost["system_s"] < 0.5
    assert cost["cpu_s"] == pytest.approx(cost["user_s"] + cost["system_s"] + cost["unwaited_s"])


def test_what_is_left_at_the_limit_is_killed_and_named(tmp_path: Path) -> None:
    cost = measured(tmp_path, "signal.pause()", limit_s=0.3)
    assert cost["code"] == -9
    assert len(cost["killed"]) == 1
    assert cost["wall_s"] < 30


def test_a_process_is_read_whatever_its_name() -> None:
    text = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 100 20 3 1 20 0 1 0 555 0"
    ticks = os.sysconf("SC_CLK_TCK")
    assert Process.parse(text) == Process(7, 3, 555, "a) b (c", 124 / ticks)


def measured(folder: Path, script: str, limit_s: float = 60.0) -> dict:
    report = folder / "cost.json"
    command = [sys.executable, str(SCRIPT), str(report), str(limit_s), sys.executable, "-S", "-c", BURN + script]
    subprocess.run(command, check=False, timeout=60)
    return json.loads(report.read_text("utf-8"))
