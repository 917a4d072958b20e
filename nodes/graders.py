"""A pool of killable processes that score responses, with a time limit for each response.

A worker scores a chunk of rows and answers row by row; one that hangs or dies is killed with all it has
started, and another takes over its rows. What runs in a worker is in `nodes.grader_process`.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from flowgraph.errors import RuleError
from nodes.grader_worker import Worker, kill_all
from nodes.rules import RuleRef

START_LIMIT_S = 60.0
CHUNK_ROWS = 64
RESPONSE_CHARACTERS = 80

OnError = float | Literal["fail"]


@dataclass(frozen=True)
class Graded:
    """One score per row, in the rows' order; how many rows failed, and the text of the first failure (else empty)."""

    scores: tuple[float, ...]
    failures: int = 0
    first_failure: str = ""


@dataclass
class _Job:
    """One call of `grade`: what is asked, which rows wait, and what is known so far."""

    rule: RuleRef
    rows: Sequence[Mapping[str, object]]
    load_line: bytes
    on_error: OnError
    chunk_rows: int
    waiting: deque[int]
    scores: dict[int, float] = field(default_factory=dict[int, float])
    failed: dict[int, RuleError] = field(default_factory=dict[int, RuleError])

    def graded(self) -> Graded:
        first = str(self.failed[min(self.failed)]) if self.failed else ""
        return Graded(tuple(self.scores[index] for index in range(len(self.rows))), len(self.failed), first)

    def fail(self, index: int, error: RuleError) -> None:
        if self.on_error == "fail":
            raise error
        self.scores[index], self.failed[index] = float(self.on_error), error


class Graders:
    """Score responses in `workers` processes, waiting at most `limit_s` seconds for each response.

    Processes start when first needed and stay warm. They end, with all that rules have started, on `close`, at exit,
    or when this process dies. (What leaves its process group, as a daemon does, is not followed.)
    """

    def __init__(self, workers: int = 1, limit_s: float = 10.0, *, start_limit_s: float = START_LIMIT_S) -> None:
        self._count, self._limit_s, self._start_limit_s = workers, limit_s, start_limit_s
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        weakref.finalize(self, kill_all, self._workers, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a later `grade` starts new ones."""
        kill_all(self._workers, os.getpid())

    def grade(
        self,
        rule: RuleRef,
        rows: Sequence[Mapping[str, object]],
        settings: Mapping[str, object] | None = None,
        *,
        on_error: OnError = "fail",
    ) -> Graded:
        """Score each row: a mapping of `response`, `finished`, `prompt` and the data set's columns.

        A row that fails raises RuleError, or with a number as `on_error` is scored so and counted. A rule that
        cannot be loaded, and a row that lacks what the rule asks for, its ground truth too, raise RuleError always.
        """
        job = self._job(rule, rows, settings or {}, on_error)
        with self._lock:
            try:
                self._run(job)
            except BaseException:  # KeyboardInterrupt too: a worker amid a response is no use to the next call
                self.close()
                raise
        return job.graded()

    def _job(
        self, rule: RuleRef, rows: Sequence[Mapping[str, object]], settings: Mapping[str, object], on_error: OnError
    ) -> _Job:
        import_path = [str(Path(entry).absolute()) for entry in sys.path]
        load = {"source": rule.source, "name": rule.name, "settings": settings, "import_path": import_path}
        chunk_rows = min(CHUNK_ROWS, max(1, math.ceil(len(rows) / self._count)))
        return _Job(rule, rows, _line(load), on_error, chunk_rows, deque(range(len(rows))))

    def _run(self, job: _Job) -> None:
        for worker in [worker for worker in self._workers if not worker.alive()]:
            self._workers.remove(worker)
            worker.kill()
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                _watch(selector, worker)
            while len(job.scores) < len(job.rows):
                self._staff(job, selector)
                self._listen(job, selector)

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.deadline_s < math.inf]

    def _staff(self, job: _Job, selector: selectors.BaseSelector) -> None:
        """Start the workers that the waiting rows need, and give the idle ones something to do."""
        chunks = math.ceil(len(job.waiting) / job.chunk_rows)
        while len(self._workers) < min(self._count, len(self._busy()) + chunks):
            self._workers.append(Worker())
            _watch(selector, self._workers[-1])
        for worker in self._workers:
            if job.waiting and worker.deadline_s == math.inf:
                self._feed(worker, job)

    def _feed(self, worker: Worker, job: _Job) -> None:
        """Send the rule to a worker that has not loaded it, else its next chunk of rows."""
        if worker.load_line != job.load_line:
            worker.load_line, worker.ready = job.load_line, False
            self._ask(worker, job.load_line, self._start_limit_s)
        else:
            worker.owed.extend(job.waiting.popleft() for _ in range(min(job.chunk_rows, len(job.waiting))))
            self._ask(worker, _line({"rows": [job.rows[index] for index in worker.owed]}), self._limit_s)

    def _ask(self, worker: Worker, line: bytes, limit_s: float) -> None:
        worker.printed = b""
        worker.send(line, limit_s)
        worker.deadline_s = time.monotonic() + limit_s

    def _listen(self, job: _Job, selector: selectors.BaseSelector) -> None:
        """Wait for the next answers or the next deadline, and act on them."""
        wait_s = min(worker.deadline_s for worker in self._busy()) - time.monotonic()
        for key, _ in selector.select(max(0.0, wait_s)):
            worker: Worker = key.data
            if worker not in self._workers:
                continue  # lost to an event just before this one
            if key.fileobj is worker.output:
                if worker.read_printed() == b"":
                    selector.unregister(worker.output)
            elif (answers := worker.answers()) is None:
                self._lose(worker, job, selector)
            else:
                for answer in answers:
                    self._take(worker, job, answer)
        for worker in [worker for worker in self._busy() if worker.deadline_s < time.monotonic()]:
            self._lose(worker, job, selector)

    def _take(self, worker: Worker, job: _Job, answer: Mapping[str, Any]) -> None:
        """Note what a worker answered: that the rule is loaded, a score, or a failure."""
        if not worker.ready:
            if "failed" in answer:
                worker.read_printed()
                raise _not_loaded(job.rule, answer, worker.printed)
            worker.ready, worker.deadline_s = True, math.inf
            return
        index = worker.owed.popleft()
        worker.deadline_s = time.monotonic() + self._limit_s if worker.owed else math.inf
        if "score" in answer:
            job.scores[index] = answer["score"]
            return
        worker.read_printed()
        row, notes = job.rows[index], _notes(job.rows[index], index, worker.printed)
        if answer["failed"] == "lacks_column":
            raise RuleError.lacks_column(job.rule.text, answer["parameter"], answer["known"], _called(row, index))
        if answer["failed"] == "lacks_truth":
            raise RuleError.lacks_truth(job.rule.text, answer["value"], _called(row, index))
        job.fail(index, _failure(job.rule, answer, notes))

    def _lose(self, worker: Worker, job: _Job, selector: selectors.BaseSelector) -> None:
        """Kill a worker that hangs or has closed its channel; its first owed row fails, the others wait again."""
        late = worker.deadline_s < time.monotonic()
        for watched in (worker.channel, worker.output):
            if watched in selector.get_map():
                selector.unregister(watched)
        self._workers.remove(worker)
        code = worker.kill()
        hung = late and code == -signal.SIGKILL
        if worker.owed:
            index = worker.owed.popleft()
            job.waiting.extendleft(reversed(worker.owed))
            notes = _notes(job.rows[index], index, worker.printed)
            lost = RuleError.hung(job.rule.text, self._limit_s, notes=notes)
            job.fail(index, lost if hung else RuleError.died(job.rule.text, _ending(code), notes=notes))
        elif not worker.ready:
            why = f"it took over {self._start_limit_s:g} s" if hung else f"its process ended: {_ending(code)}"
            raise RuleError.not_loaded(job.rule.text, why, notes=_printed(worker.printed))


def _watch(selector: selectors.BaseSelector, worker: Worker) -> None:
    selector.register(worker.channel, selectors.EVENT_READ, worker)
    selector.register(worker.output, selectors.EVENT_READ, worker)


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    """Give what JSON can hold of an array or its scalar; of anything else, such as a date, its text."""
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else str(value)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _called(row: Mapping[str, object], index: int) -> str:
    names = [f"{name} {row[column]}" for name, column in _IDENTITY if column in row]
    return ", ".join(names) or f"row {index}"


_IDENTITY = (("prompt", "prompt_id"), ("sample", "sample"))


def _notes(row: Mapping[str, object], index: int, printed: bytes) -> list[str]:
    response = str(row["response"]) if "response" in row else ""
    cut = "…" if len(response) > RESPONSE_CHARACTERS else ""
    return [f"{_called(row, index)}, response {response[:RESPONSE_CHARACTERS]!r}{cut}", *_printed(printed)]


def _printed(printed: bytes) -> list[str]:
    lines = printed.decode(errors="replace").splitlines()
    return ["last printed:", *(f"  {line}" for line in lines)] if lines else []


def _failure(rule: RuleRef, answer: Mapping[str, Any], notes: Sequence[str]) -> RuleError:
    if answer["failed"] == "bad_value":
        return RuleError.bad_value(rule.text, answer["value"], notes=notes)
    return RuleError.raised(rule.text, answer["exception"], at=answer["at"], notes=notes)


def _not_loaded(rule: RuleRef, answer: Mapping[str, Any], printed: bytes) -> RuleError:
    match answer["failed"]:
        case "lacks_name":
            return RuleError.lacks_name(rule.text, answer["name"], answer["known"])
        case "lacks_package":
            return RuleError.lacks_package(rule.text, answer["package"])
        case "lacks_setting":
            return RuleError.lacks_setting(rule.text, answer["setting"], answer["known"])
        case _:
            return RuleError.not_loaded(rule.text, answer["why"], at=answer["at"], notes=_printed(printed))
