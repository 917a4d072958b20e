"""What a process is at, asked of it and read by a signal."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from flowgraph.runtime.ray.stack_dump import request_stacks, shortened, thread_stacks

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="files in memory are of Linux")
CHILD = """
import time
from flowgraph.runtime.ray.stack_dump import write_on_signal
def waits_for_nothing(): print("ready", flush=True); time.sleep(60)
write_on_signal(); waits_for_nothing()
"""


def test_a_process_says_what_its_other_threads_are_at() -> None:
    stop = threading.Event()

    def waits_for_a_stop() -> None:
        stop.wait()

    thread = threading.Thread(target=waits_for_a_stop, name="waiting")
    thread.start()
    try:
        told = thread_stacks()
    finally:
        stop.set()
        thread.join()
    assert "waiting" in told
    assert any(line.endswith("waits_for_a_stop") for line in told)
    assert not any(line.endswith("thread_stacks") for line in told)


@LINUX
def test_a_process_that_answers_nothing_is_read_by_a_signal_and_lives_on() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            for _ in range(2):
                assert any("waits_for_nothing" in line for line in request_stacks(child.pid))
            time.sleep(0.05)
            assert child.poll() is None
        finally:
            child.kill()


def test_a_process_that_was_not_told_to_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            assert request_stacks(child.pid) == []
            assert child.poll() is None
        finally:
            child.kill()


def test_no_process_has_no_stacks() -> None:
    assert request_stacks(2**22 + 1) == []


def test_the_last_lines_are_kept() -> None:
    assert shortened(["a"]) == ["a"]
    assert shortened([str(i) for i in range(30)])[:2] == ["(6 lines before)", "6"]
