"""A pool of killable processes that score responses, with a time limit for each response and for a whole call.

A worker belongs to one rule. It scores a chunk of rows and answers row by row, and each answer is checked against what
was asked. One that hangs, dies or forges is ended with all it has started, and another takes over its rows. What runs
in a worker is in `nodes.grader_process`, what it may do in `nodes.confinement`.
"""

from __future__ import annotations

import itertools
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
from typing import Literal, Self

from flowgraph.errors import RuleError
from nodes.confinement import Allowed, refuse_unheld
from nodes.grader_failures import called, ending, failure, not_loaded, notes_of, printed_lines
from nodes.grader_messages import (
    Answer,
    BadValue,
    Forged,
    LacksColumn,
    LacksTruth,
    LoadAnswer,
    Raised,
    Ready,
    ScoredAnswer,
    read_answer,
    read_load,
)
from nodes.grader_worker import GraderWorker, kill_all
from nodes.rules import RuleRef

START_LIMIT_S = 60.0
CHUNK_ROWS = 64
RULES_KEPT = 8
LOOK_S = 0.5
GAP_S = 1.0
SHARE_OF_LIMIT, LEAST_LIMITS = 4, 12

OnError = float | Literal["fail"]


@dataclass(frozen=True)
class Graded:
    """One score per row, in the rows' order; how many rows failed, and the text of the first failure (else empty).

    `unreadable` counts the responses in which the rule found nothing to score, and those on which a shipped rule
    failed: both are wrong, so they score 0.
    """

    scores: tuple[float, ...]
    failures: int = 0
    first_failure: str = ""
    unreadable: int = 0


class Clock:
    """Counts the seconds in which this process ran: a gap between two looks counts as a second at most.

    So a process that was stopped, and goes on, blames nobody for the time in between.
    """

    def __init__(self) -> None:
        self._ran_s, self._looked_s = 0.0, time.monotonic()

    def now_s(self) -> float:
        """Return how long this process ran, in seconds; called at least every half second while something waits."""
        now_s = time.monotonic()
        self._ran_s += min(now_s - self._looked_s, GAP_S)
        self._looked_s = now_s
        return self._ran_s


@dataclass
class _Job:
    """One call of `grade`: what is asked, which rows wait, and what is known so far."""

    rule: RuleRef
    rows: Sequence[Mapping[str, object]]
    may: Allowed
    load: Mapping[str, object]
    on_error: OnError
    chunk_rows: int
    waiting: deque[int]
    workers: list[GraderWorker]
    deadline_s: float
    scores: dict[int, float] = field(default_factory=dict[int, float])
    failed: dict[int, RuleError] = field(default_factory=dict[int, RuleError])
    failures: int = 0
    unreadable: int = 0

    def graded(self) -> Graded:
        first = str(self.failed[min(self.failed)]) if self.failed else ""
        scores = tuple(self.scores[index] for index in range(len(self.rows)))
        return Graded(scores, self.failures, first, self.unreadable)

    def fail(self, index: int, error: RuleError) -> None:
        """Score a row on which the rule failed as `on_error` says."""
        if self.on_error == "fail":
            raise error
        self.scores[index], self.failed[index] = float(self.on_error), error
        self.failures += 1

    def end(self, index: int, error: RuleError) -> None:
        """Score a row that ended or outlasted its process: a shipped rule's counts as wrong."""
        if not self.rule.shipped:
            self.fail(index, error)
            return
        self.scores[index], self.failed[index] = 0.0, error
        self.unreadable += 1


def whole_limit_s(rows: int, workers: int, limit_s: float) -> float:
    """Return the seconds a call may take if nobody says: a quarter of each response's limit, 12 limits at least.

    >>> whole_limit_s(rows=256, workers=1, limit_s=10.0), whole_limit_s(rows=8, workers=1, limit_s=10.0)
    (640.0, 120.0)
    """
    return limit_s * max(LEAST_LIMITS, rows / workers / SHARE_OF_LIMIT)


class Graders:
    """Score responses in `workers` processes for each rule, waiting at most `limit_s` seconds for each response.

    A call takes at most `call_limit_s` seconds, by default `whole_limit_s`. `allow` names what rules may do beyond
    scoring text: see `nodes.confinement`. Processes start when first needed and stay warm. They end, with all that
    rules have started, on `close`, at exit, or when this process dies.
    """

    def __init__(
        self,
        workers: int = 1,
        limit_s: float = 10.0,
        *,
        allow: Sequence[str] = (),
        call_limit_s: float | None = None,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._count, self._limit_s, self._start_limit_s = workers, limit_s, start_limit_s
        self._allow, self._call_limit_s = tuple(allow), call_limit_s
        self._of_rule: dict[str, list[GraderWorker]] = {}
        self._workers: list[GraderWorker] = []
        self._lock = threading.Lock()
        self._clock = Clock()
        self._ids = itertools.count()
        weakref.finalize(self, kill_all, self._workers, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a later `grade` starts new ones."""
        self._of_rule.clear()
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

        A row on which a rule of your own fails raises RuleError, or with a number as `on_error` is scored so and
        counted; with a shipped rule it scores 0 and is counted as unreadable. A rule that cannot be loaded or confined,
        and a row that lacks what the rule asks for, its ground truth too, raise RuleError always.
        """
        may = refuse_unheld(rule, self._allow)
        with self._lock:
            job = self._job(rule, may, rows, settings or {}, on_error)
            try:
                self._run(job)
            except BaseException:  # KeyboardInterrupt too: a worker amid a response is no use to the next call
                self.close()
                raise
        return job.graded()

    def _job(
        self,
        rule: RuleRef,
        may: Allowed,
        rows: Sequence[Mapping[str, object]],
        settings: Mapping[str, object],
        on_error: OnError,
    ) -> _Job:
        import_path = [str(Path(entry).absolute()) for entry in sys.path]
        load = {"source": rule.source, "name": rule.name, "settings": settings, "import_path": import_path}
        limit_s = self._call_limit_s or whole_limit_s(len(rows), self._count, self._limit_s)
        return _Job(
            rule,
            rows,
            may=may,
            load=load,
            on_error=on_error,
            chunk_rows=min(CHUNK_ROWS, max(1, math.ceil(len(rows) / self._count))),
            waiting=deque(range(len(rows))),
            workers=self._workers_of(json.dumps(load, default=_plain)),
            deadline_s=self._clock.now_s() + limit_s,
        )

    def _workers_of(self, load: str) -> list[GraderWorker]:
        """Return the living workers of a rule; those of the rule that was used the longest ago end first."""
        mine = self._of_rule.pop(load, [])
        for worker in [worker for worker in mine if not worker.idle()]:
            self._end(worker, mine)
        self._of_rule[load] = mine
        while len(self._of_rule) > RULES_KEPT:
            oldest = self._of_rule.pop(next(iter(self._of_rule)))
            for worker in list(oldest):
                self._end(worker, oldest)
        return mine

    def _end(self, worker: GraderWorker, among: list[GraderWorker]) -> int:
        among.remove(worker)
        self._workers.remove(worker)
        return worker.kill()

    def _run(self, job: _Job) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in job.workers:
                _watch(selector, worker)
            while len(job.scores) < len(job.rows):
                self._staff(job, selector)
                self._listen(job, selector)
                if self._clock.now_s() > job.deadline_s:
                    self._give_up(job, selector)

    def _staff(self, job: _Job, selector: selectors.BaseSelector) -> None:
        """Start the workers that the waiting rows need, and give the idle ones something to do."""
        chunks = math.ceil(len(job.waiting) / job.chunk_rows)
        while len(job.workers) < min(self._count, len(_busy(job)) + chunks):
            worker = GraderWorker(job.rule, job.may, sys.path)
            self._workers.append(worker)
            job.workers.append(worker)
            _watch(selector, worker)
        for worker in job.workers:
            if job.waiting and worker.deadline_s == math.inf:
                self._feed(worker, job)

    def _feed(self, worker: GraderWorker, job: _Job) -> None:
        """Send the rule to a worker that has not loaded it, else its next chunk of rows."""
        if not worker.ready:
            worker.owed.append((next(self._ids), -1))
            apart = not (job.rule.shipped or job.may.state)
            worker.ask(_line({"id": worker.owed[0][0], "load": job.load, "apart": apart}))
            worker.deadline_s = self._clock.now_s() + self._start_limit_s
        else:
            chunk = [job.waiting.popleft() for _ in range(min(job.chunk_rows, len(job.waiting)))]
            worker.owed.extend((next(self._ids), index) for index in chunk)
            worker.ask(_line({"rows": [(at, job.rows[index]) for at, index in worker.owed]}))
            worker.deadline_s = self._clock.now_s() + self._limit_s

    def _listen(self, job: _Job, selector: selectors.BaseSelector) -> None:
        """Wait for the next answers or the next deadline, and act on them: answers that came count before deadlines."""
        for worker in job.workers:
            wanted = selectors.EVENT_WRITE if worker.unsent else 0
            if wanted and worker.questions not in selector.get_map():
                selector.register(worker.questions, wanted, worker)
            elif not wanted and worker.questions in selector.get_map():
                selector.unregister(worker.questions)
        next_s = min((worker.deadline_s for worker in _busy(job)), default=0.0)
        for key, _ in selector.select(min(LOOK_S, max(0.0, next_s - self._clock.now_s()))):
            worker = key.data
            if worker not in job.workers:
                continue  # lost to an event just before this one
            if key.fileobj == worker.questions:
                worker.send()
            elif key.fileobj is worker.output:
                if worker.read_printed() == b"":
                    selector.unregister(worker.output)
            else:
                self._hear(worker, job, selector)
        for worker in _busy(job):
            if worker.deadline_s < self._clock.now_s():
                self._hear(worker, job, selector)
                if worker in job.workers and worker.deadline_s < self._clock.now_s():
                    self._lose(worker, job, selector, late=True)

    def _hear(self, worker: GraderWorker, job: _Job, selector: selectors.BaseSelector) -> None:
        """Act on what a worker has answered; one that answers what it was not asked is lost."""
        lines = worker.lines()
        if lines is None:
            self._lose(worker, job, selector)
            return
        for line in lines:
            at = worker.owed[0][0] if worker.owed else -1
            answer = read_answer(line, at) if worker.ready else read_load(line, at)
            if answer is None or isinstance(answer, Forged):
                self._lose(worker, job, selector, forged=True)
                return
            self._take(worker, job, answer)
            if isinstance(answer, Answer) and answer.spent:
                self._lose(worker, job, selector, blamed=False)
                return

    def _take(self, worker: GraderWorker, job: _Job, answer: Answer | LoadAnswer) -> None:
        """Note what a worker answered: that the rule is loaded, a score, or a failure."""
        _, index = worker.owed.popleft()
        worker.deadline_s = self._clock.now_s() + self._limit_s if worker.owed else math.inf
        if isinstance(answer, ScoredAnswer):
            job.scores[index] = answer.score
            job.unreadable += answer.unreadable
            return
        if isinstance(answer, Ready):
            worker.ready = True
            return
        worker.read_printed()
        if not isinstance(answer, Answer):
            raise not_loaded(job.rule, answer, worker.printed)
        row = job.rows[index]
        if isinstance(answer, LacksColumn):
            raise RuleError.lacks_column(job.rule.text, answer.parameter, answer.known, called(row, index))
        if isinstance(answer, LacksTruth):
            raise RuleError.lacks_truth(job.rule.text, answer.value, called(row, index))
        error = failure(job.rule, answer, notes_of(row, index, worker.printed))
        (job.fail if isinstance(answer, Raised | BadValue) else job.end)(index, error)

    def _lose(
        self,
        worker: GraderWorker,
        job: _Job,
        selector: selectors.BaseSelector,
        *,
        late: bool = False,
        forged: bool = False,
        blamed: bool = True,
    ) -> None:
        """End a worker that hangs, forges, or closed its channel; its first owed row fails, the others wait again."""
        for watched in (worker.questions, worker.answers, worker.output):
            if watched in selector.get_map():
                selector.unregister(watched)
        code = self._end(worker, job.workers)
        hung = late and code == -signal.SIGKILL
        if not worker.ready:
            if blamed:
                raise self._load_failure(worker, job, code, hung=hung, forged=forged)
            return
        owed = [index for _, index in worker.owed]
        blamed_index = owed.pop(0) if owed and blamed else None
        job.waiting.extendleft(reversed(owed))
        if blamed_index is not None:
            notes = notes_of(job.rows[blamed_index], blamed_index, worker.printed)
            if forged:
                error = RuleError.forged(job.rule.text, notes=notes)
            elif hung:
                error = RuleError.hung(job.rule.text, self._limit_s, notes=notes)
            else:
                error = RuleError.died(job.rule.text, ending(code), notes=notes)
            job.end(blamed_index, error)

    def _load_failure(self, worker: GraderWorker, job: _Job, code: int, *, hung: bool, forged: bool) -> RuleError:
        if forged:
            why = "its process answered what it was not asked"
        elif hung:
            why = f"it took over {self._start_limit_s:g} s"
        else:
            why = f"its process ended: {ending(code)}"
        return RuleError.not_loaded(job.rule.text, why, notes=printed_lines(worker.printed))

    def _give_up(self, job: _Job, selector: selectors.BaseSelector) -> None:
        """Fail every row that has no score yet: the whole call took too long."""
        for worker in _busy(job):
            self._lose(worker, job, selector, blamed=False)
        limit_s = self._call_limit_s or whole_limit_s(len(job.rows), self._count, self._limit_s)
        scored = len(job.scores) - len(job.failed)
        while job.waiting:
            index = job.waiting.popleft()
            notes = notes_of(job.rows[index], index, b"")
            job.end(index, RuleError.overtime(job.rule.text, limit_s, scored, len(job.rows), notes=notes))


def _busy(job: _Job) -> list[GraderWorker]:
    return [worker for worker in job.workers if worker.deadline_s < math.inf]


def _watch(selector: selectors.BaseSelector, worker: GraderWorker) -> None:
    selector.register(worker.answers, selectors.EVENT_READ, worker)
    selector.register(worker.output, selectors.EVENT_READ, worker)


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    """Give what JSON can hold of an array or its scalar; of anything else, such as a date, its text."""
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else str(value)
