"""A pool of killable processes that run an environment's methods, each call within a time limit.

The state of a conversation is pickled by the process that ran its last call; here it is bytes that nothing reads. A
process that hangs or dies is killed with everything that it has started, and the conversation goes on in another one,
from its state before the call.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowgraph.errors import EnvironmentFailure
from nodes.scoring.grader_messages import ending
from nodes.scoring.grader_rights import refuse_unheld
from nodes.scoring.grader_worker import GraderWorker, kill_all
from nodes.scoring.rules import RuleRef

START_LIMIT_S = 60.0
LOOK_S, SEND_S = 0.5, 0.001
ANSWER_BYTES = 8 << 20  # a state, messages and the text of a tool together

Method = Literal["reset", "tool", "reply", "turn_reward", "reward", "read"]


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: int


class Described(_Answer):
    """The schemas of an environment's tools, and the names of its optional methods."""

    tools: Annotated[list[dict[str, Any]], Field(max_length=256)]
    methods: list[str]


class _Failed(_Answer):
    failed: str
    at: str


class Called(_Answer):
    """The value of a method, the state after it, and whether the conversation is over; a `fault` if it failed."""

    value: Any = None
    state: str | None = None
    done: bool = False
    fault: str = ""
    at: str = ""


class _Worker(GraderWorker):
    program: ClassVar[str] = str(Path(__file__).with_name("environment_process.py"))
    message_bytes: ClassVar[int] = ANSWER_BYTES


class EnvironmentPool:
    """Runs the methods of one environment in up to `workers` processes, each call within `limit_s` seconds.

    `reader` is a function of your own that reads calls. `allow` and `confined` are permissions, as for rules of scores.
    A tool's text is cut to `characters`. Processes start when they are first needed and are reused; they end on
    `close`, or when this process does.
    """

    def __init__(
        self,
        environment: RuleRef,
        *,
        reader: RuleRef | None = None,
        workers: int = 1,
        limit_s: float = 10.0,
        characters: int = 4_096,
        allow: Sequence[str] = (),
        confined: bool = False,
    ) -> None:
        self.environment, self.limit_s, self.characters = environment, limit_s, characters
        self._reader, self._ids = reader, itertools.count()
        self._may = refuse_unheld(environment, allow, confined=confined)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="environment")
        self._idle, self._workers, self._lock = list[_Worker](), list[GraderWorker](), threading.Lock()
        weakref.finalize(self, kill_all, self._workers, os.getpid())

    def close(self) -> None:
        """End all processes; a later call starts new ones."""
        with self._lock:
            self._idle.clear()
            kill_all(self._workers, os.getpid())

    @cached_property
    def described(self) -> Described:
        """Return the environment's tools and methods. Raises EnvironmentFailure if its class cannot be loaded."""
        worker, described = self._started()
        with self._lock:
            self._idle.append(worker)
        return described

    async def call(
        self, method: Method, state: str | None, arguments: Mapping[str, Any], *, seed: int, tool: str = ""
    ) -> Called:
        """Run a method on a state, None for a new object, and return its answer; failures are its `fault`.

        `seed` sets Python's and NumPy's random numbers before the call. Raises EnvironmentFailure if the class cannot
        be loaded.
        """
        facts = {"method": method, "tool": tool, "state": state, "arguments": arguments}
        question = {**facts, "seed": seed, "characters": self.characters}
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, question)

    def _call(self, question: Mapping[str, Any]) -> Called:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None or not worker.idle():
            if worker is not None:
                self._end(worker)
            worker, _ = self._started()
        answer = self._asked(worker, question, self.limit_s)
        if isinstance(answer, str):
            return Called(id=0, fault=answer)
        try:
            called = Called.model_validate(answer)
        except ValidationError:
            self._end(worker)
            return Called(id=0, fault="its process sent an answer of another form")
        with self._lock:
            self._idle.append(worker)
        return called

    def _started(self) -> tuple[_Worker, Described]:
        worker = _Worker(self.environment, self._may, sys.path)
        with self._lock:
            self._workers.append(worker)
        reader = None if self._reader is None else (self._reader.source, self._reader.name)
        import_path = [str(Path(entry).absolute()) for entry in sys.path]
        load = {"source": self.environment.source, "name": self.environment.name, "import_path": import_path}
        answer = self._asked(worker, {"load": {**load, "reader": reader}}, START_LIMIT_S)
        text = self.environment.text
        if isinstance(answer, str):
            raise EnvironmentFailure.not_loaded(text, answer)
        try:
            if "failed" in answer:
                failed = _Failed.model_validate(answer)
                raise EnvironmentFailure.not_loaded(text, failed.failed, at=failed.at)
            return worker, Described.model_validate(answer)
        except ValidationError:
            raise EnvironmentFailure.not_loaded(text, "its process sent an answer of another form") from None
        except EnvironmentFailure:
            self._end(worker)
            raise

    def _asked(self, worker: GraderWorker, question: Mapping[str, Any], limit_s: float) -> dict[str, Any] | str:
        """Return a worker's answer; if there is none within the limit, end the worker, and return why."""
        number, end_s = next(self._ids), time.monotonic() + limit_s
        worker.ask(json.dumps({**question, "id": number}, default=_plain).encode() + b"\n")
        with selectors.DefaultSelector() as selector:
            selector.register(worker.answers, selectors.EVENT_READ)
            selector.register(worker.output, selectors.EVENT_READ)
            while (left_s := end_s - time.monotonic()) > 0:
                selector.select(min(SEND_S if worker.unsent else LOOK_S, left_s))
                worker.send()
                if worker.read_printed() == b"" and worker.output in selector.get_map():
                    selector.unregister(worker.output)
                lines = worker.lines()
                if lines is None:
                    return f"its process ended: {ending(self._end(worker))}"
                if lines:
                    answer = _parsed(lines[0])
                    if len(lines) == 1 and answer.get("id") == number:
                        return answer
                    self._end(worker)
                    return "its process sent an answer without a request"
        self._end(worker)
        return f"it took over {limit_s:g} s"

    def _end(self, worker: GraderWorker) -> int:
        with self._lock:
            if worker not in self._workers:
                return 0
            self._workers.remove(worker)
        return worker.kill()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _plain(value: object) -> object:
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else str(value)
