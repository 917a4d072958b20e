"""Environments for tests: the processes of environments load this file, so it imports nothing of the tests."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Echo:
    """Repeats each turn twice, so that what it says is as hard to tell from the policy's own text as can be."""

    def reset(self, row: Mapping[str, Any]) -> Any:
        return row["prompt"]

    def reply(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        text = messages[-1]["content"]
        return (text * 2)[:4] or "0"

    def turn_reward(self) -> float:
        return 0.5

    def reward(self) -> float:
        return 1.0


class Counter:
    """Adds up numbers; its tool fails in each way that a tool can."""

    def reset(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        self.total, self.drawn = 0, 0.0
        return [{"role": "user", "content": "1+1"}]

    def add(self, number: int, times: int = 1) -> str:
        """Add a number to the total.

        Args:
            number: what is added
            times (int): how often it is added
        """
        self.total += number * times
        if number == 500:
            raise ValueError("no five hundred")
        if number == 600:
            time.sleep(60)
        if number == 700:
            os._exit(3)
        if number == 800:
            return "8" * 100_000
        if number == 900:
            self.done = True
        return str(self.total)

    async def draw(self) -> float:
        """Return a random number."""
        self.drawn = random.random()
        return self.drawn

    def reward(self) -> float:
        return float(self.total)


class Digits:
    """Has one tool with one parameter."""

    def reset(self, row: Mapping[str, Any]) -> str:
        self.seen: list[int] = []
        return "?"

    def take(self, number: int) -> str:
        """Take a number."""
        self.seen.append(number)
        return "="

    def reward(self) -> float:
        return float(len(self.seen))


class Broken:
    """Fails in a method that is no tool."""

    def reset(self, row: Mapping[str, Any]) -> str:
        raise KeyError("no such column")


class Unrewarded:
    def reset(self, row: Mapping[str, Any]) -> str:
        return "?"


class NoReset:
    def act(self, number: int) -> str:
        return ""


class Untyped:
    def reset(self, row: Mapping[str, Any]) -> str:
        return "?"

    def act(self, number):  # type: ignore[no-untyped-def]
        return ""


def plus_calls(text: str) -> list[tuple[str, dict[str, int]]]:
    """Read `+3` as a call."""
    return [("add", {"number": int(part)}) for part in text.split("+")[1:] if part.isdecimal()]


def failing_calls(text: str) -> list[tuple[str, dict[str, int]]]:
    raise RuntimeError("cannot read")
