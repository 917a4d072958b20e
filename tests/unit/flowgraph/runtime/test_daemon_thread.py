"""A thread works in the order of submission, hands errors to who reads the result, and never keeps a process alive."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from flowgraph.runtime.daemon_thread import DaemonThread


def test_functions_are_called_in_order_and_their_results_and_errors_come_back() -> None:
    thread, called = DaemonThread(), list[int]()
    futures = [thread.submit(lambda number=number: called.append(number) or number) for number in range(20)]

    def fails() -> Any:
        raise ValueError("from the thread")

    failed, after = thread.submit(fails), thread.submit(lambda: "goes on")
    thread.close()
    assert [future.result(60) for future in futures] == called == list(range(20))
    assert after.result(60) == "goes on"
    with pytest.raises(ValueError, match="from the thread"):
        failed.result()


def test_what_is_cancelled_is_not_called() -> None:
    thread, called, go_on = DaemonThread(), list[str](), threading.Event()
    thread.submit(lambda: go_on.wait(60))
    second = thread.submit(lambda: called.append("second"))
    last = thread.submit(lambda: called.append("last"))
    assert second.cancel()
    go_on.set()
    last.result(60)
    thread.close()
    assert called == ["last"]


def test_a_function_that_never_returns_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import threading\n"
        "from flowgraph.runtime.daemon_thread import DaemonThread\n"
        "DaemonThread().submit(threading.Event().wait)\n"
        "print('ended')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "ended\n"
