"""Signals while something starts, runs and closes: what it started is never left behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from flowgraph.app.running.interrupts import Interrupts


@contextmanager
def opened(told: list[str], *, interrupted: bool = False) -> Generator[None]:
    """Start, run and clean up; the start may be interrupted, each clean-up is, by every signal."""
    try:
        told.append("starts")
        if interrupted:
            signal.raise_signal(signal.SIGINT)
        told.append("started")
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        try:
            raise ValueError("something else is wrong")
        except ValueError:
            signal.raise_signal(signal.SIGINT)
        told.append("cleaned up")


def test_a_second_interrupt_does_not_break_off_the_clean_up_of_a_start() -> None:
    told = list[str]()
    opening = opened(told, interrupted=True)
    with pytest.raises(KeyboardInterrupt), Interrupts("", print) as interrupts, interrupts.kept_from_closing(opening):
        told.append("runs")
    assert told == ["starts", "cleaned up"]


def test_no_interrupt_breaks_off_a_close() -> None:
    told = list[str]()
    with Interrupts("", print) as interrupts, interrupts.kept_from_closing(opened(told)):
        told.append("runs")
    assert told == ["starts", "started", "runs", "cleaned up"]


def test_an_interrupt_that_a_start_swallows_keeps_no_other_from_it() -> None:
    @contextmanager
    def stubborn() -> Generator[None]:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second interrupt ends the start")
        yield

    with (
        pytest.raises(KeyboardInterrupt),
        Interrupts("", print) as interrupts,
        interrupts.kept_from_closing(stubborn()),
    ):
        pass


def test_signals_are_heard_again_after_a_start_that_was_interrupted() -> None:
    with Interrupts("", print) as interrupts:
        with (
            contextlib.suppress(KeyboardInterrupt),
            interrupts.kept_from_closing(opened([], interrupted=True)),
        ):
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
