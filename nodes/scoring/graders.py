"""A pool of killable processes that score responses, with a time limit for each response and for a whole call.

A worker belongs to one rule. It scores a chunk of rows and answers row by row; each answer is checked against the
question. A worker that hangs, dies or forges an answer is killed with everything it has started, and another scores its
remaining rows. `nodes.scoring.grader_process` is the program of a worker; `nodes.scoring.grader_rights` defines its
permissions.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from flowgraph.errors import RuleError
from nodes.scoring.confinement import Allowed
from nodes.scoring.grader_messages import (
    ANSWERS,
    LOADS,
    Answer,
    BadValue,
    Forged,
    LacksColumn,
    LacksTruth,
    LoadAnswer,
    Raised,
    Ready,
    ScoredAnswer,
    ending,
    failure,
    notes_of,
    printed_lines,
    read_message,
)
from nodes.scoring.grader_rights import refuse_unheld
from nodes.scoring.grader_worker import GraderWorker, kill_all
from nodes.scoring.rules import RuleRef

START_LIMIT_S = 60.0
CHUNK_ROWS = 64
MAX_RULES = 8  # whose workers stay warm
LOOK_S = 0.5
GAP_S = 1.0
SHARE_OF_LIMIT, MIN_LIMITS = 4, 12
PROGRAM_LIMITS = 12  # of a response whose program is tested, in limits of one test

OnError = float | Literal["fail"]
Extras = Mapping[str, float | str | None]


def default_call_limit(limit_s: float, responses: int, workers: int) -> float:
    """Return the time limit of a call in seconds: `limit_s` · `responses` / `workers` / 4, at least `limit_s` · 12."""
    return limit_s * max(MIN_LIMITS, responses / workers / SHARE_OF_LIMIT)


@dataclass(frozen=True)
class Graded:
    """One score per row, in the rows' order; the number of failed rows, and the text of the first failure or "".

    `unreadable` counts the responses in which the rule found nothing to score, and those that a shipped rule did not
    score because it hung, its process ended, or time ran out: they count as wrong. `extras` are the rule's further
    results for each row; the tuple is empty if no row has any.
    """

    scores: tuple[float, ...]
    failures: int = 0
    first_failure: str = ""
    unreadable: int = 0
    extras: tuple[Extras, ...] = ()


class Clock:
    """Counts the seconds in which this process ran; a gap between two calls of `now_s` counts as one second at most.

    A process that was stopped and continues therefore does not blame its workers for the time in between.
    """

    def __init__(self) -> None:
        self._ran_s, self._looked_s = 0.0, time.monotonic()

    def now_s(self) -> float:
        """Return the counted seconds; call it at least once a second while waiting."""
        now_s = time.monotonic()
        self._ran_s += min(now_s - self._looked_s, GAP_S)
        self._looked_s = now_s
        return self._ran_s


class Graders:
    """Scores responses in `workers` processes per rule, each response within `limit_s` seconds.

    A call may take `call_limit_s` seconds: by default `limit_s` · responses / `workers` / 4, and at least 12 times
    `limit_s`. For a rule that runs programs, `limit_s` is the limit of one test of a program. `start_limit_s` is the
    limit for loading a rule. `allow` lists permissions of rules; see `confinement`. `confined` refuses each rule that
    is not confined. `sandbox` is the URL of a server that runs programs in place of this machine. Processes start when
    they are first needed and are reused. They end, with everything that rules have started, on `close`, at exit, or
    when this process dies. Seconds are those of `clock`.
    """

    def __init__(
        self,
        workers: int = 1,
        limit_s: float = 10.0,
        *,
        allow: Sequence[str] = (),
        call_limit_s: float | None = None,
        start_limit_s: float = START_LIMIT_S,
        confined: bool = False,
        sandbox: str = "",
    ) -> None:
        self.count, self.limit_s, self.start_limit_s, self.call_limit_s = workers, limit_s, start_limit_s, call_limit_s
        self.clock = Clock()
        self.ids = itertools.count()
        self._allow, self._confined, self._sandbox = tuple(allow), confined, sandbox
        self._by_rule: dict[str, list[GraderWorker]] = {}
        self._workers: list[GraderWorker] = []
        self._lock = threading.Lock()
        weakref.finalize(self, kill_all, self._workers, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a later `grade` starts new ones."""
        self._by_rule.clear()
        kill_all(self._workers, os.getpid())

    def grade(
        self,
        rule: RuleRef,
        rows: Sequence[Mapping[str, object]],
        settings: Mapping[str, object] | None = None,
        *,
        on_error: OnError = "fail",
    ) -> Graded:
        """Run a rule on each row, a mapping of `response`, `finished` and the data set's columns; return the scores.

        `settings` are further arguments of the rule. If the rule fails on a row, or the call is over its limit,
        RuleError is raised, or if `on_error` is a number, the row gets that score and is counted as a failure. If a
        shipped rule hangs, its process ends, or its call is over the limit, the row scores 0 and is counted as
        unreadable instead. RuleError is always raised for a rule that cannot be loaded or confined, and for a row that
        lacks a column or the ground truth that the rule needs. After an error all processes are ended.
        """
        may = refuse_unheld(rule, self._allow, confined=self._confined, sandbox=self._sandbox)
        if rule.runs_programs:
            settings = {"limit_s": self.limit_s, "sandbox": self._sandbox, **(settings or {})}
        import_path = [str(Path(entry).absolute()) for entry in sys.path]
        load = {"source": rule.source, "name": rule.name, "settings": settings or {}, "import_path": import_path}
        with self._lock:
            workers = self._workers_of(json.dumps(load, default=_plain))
            try:
                return _Call(self, rule, may, load, rows, on_error, workers).run()
            except BaseException:  # KeyboardInterrupt too: a worker in the middle of a response cannot be used again
                self.close()
                raise

    def _workers_of(self, load: str) -> list[GraderWorker]:
        """Return the usable workers of a rule, and end those of the least recently used rules over `MAX_RULES`."""
        workers = self._by_rule.pop(load, [])
        for worker in [worker for worker in workers if not worker.idle()]:
            self.end(worker, workers)
        self._by_rule[load] = workers
        while len(self._by_rule) > MAX_RULES:
            oldest = self._by_rule.pop(next(iter(self._by_rule)))
            for worker in list(oldest):
                self.end(worker, oldest)
        return workers

    def start(self, rule: RuleRef, may: Allowed, workers: list[GraderWorker]) -> GraderWorker:
        """Start another worker for a rule with the permissions `may`, append it to `workers`, and return it."""
        worker = GraderWorker(rule, may, sys.path)
        self._workers.append(worker)
        workers.append(worker)
        return worker

    def end(self, worker: GraderWorker, workers: list[GraderWorker]) -> int:
        """End a worker, remove it from `workers`, and return its exit code, or minus its signal."""
        workers.remove(worker)
        self._workers.remove(worker)
        return worker.kill()


@dataclass(eq=False)
class _Call:
    pool: Graders
    rule: RuleRef
    may: Allowed
    load: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]
    on_error: OnError
    workers: list[GraderWorker]

    def __post_init__(self) -> None:
        count, pool = len(self.rows), self.pool
        self.chunk_rows = min(CHUNK_ROWS, max(1, math.ceil(count / pool.count)))
        self.limit_s = pool.call_limit_s or default_call_limit(pool.limit_s, count, pool.count)
        self.row_limit_s = pool.limit_s * (PROGRAM_LIMITS if self.rule.runs_programs else 1)
        self.waiting = deque(range(count))
        self.scores, self.failed = dict[int, float](), dict[int, RuleError]()
        self.failures, self.unreadable = 0, 0
        self.extras = dict[int, Extras]()

    def run(self) -> Graded:
        """Score every row and return the result; if the call takes too long, the rows without a score fail."""
        end_s = self.pool.clock.now_s() + self.limit_s
        with selectors.DefaultSelector() as self.selector:
            for worker in self.workers:
                self._watch(worker)
            while len(self.scores) < len(self.rows):
                self._assign()
                self._listen()
                if self.pool.clock.now_s() <= end_s:
                    continue
                for worker in self._busy:
                    self._lose(worker, blamed=False)
                scored = len(self.scores) - len(self.failed)
                while self.waiting:
                    index = self.waiting.popleft()
                    notes = notes_of(self.rows[index], index, b"")
                    text, rows = self.rule.text, len(self.rows)
                    self._fail(index, RuleError.overtime(text, self.limit_s, scored, rows, notes=notes))
        first = str(self.failed[min(self.failed)]) if self.failed else ""
        scores = tuple(self.scores[index] for index in range(len(self.rows)))
        indices = range(len(self.rows)) if any(self.extras.values()) else ()
        extras = tuple(self.extras.get(index, {}) for index in indices)
        return Graded(scores, self.failures, first, self.unreadable, extras)

    @property
    def _busy(self) -> list[GraderWorker]:
        return [worker for worker in self.workers if worker.deadline_s < math.inf]

    def _watch(self, worker: GraderWorker) -> None:
        self.selector.register(worker.answers, selectors.EVENT_READ, worker)
        self.selector.register(worker.output, selectors.EVENT_READ, worker)

    def _assign(self) -> None:
        chunks = math.ceil(len(self.waiting) / self.chunk_rows)
        while len(self.workers) < min(self.pool.count, len(self._busy) + chunks):
            self._watch(self.pool.start(self.rule, self.may, self.workers))
        for worker in self.workers:
            if not self.waiting or worker.deadline_s < math.inf:
                continue
            if worker.ready:
                indices = [self.waiting.popleft() for _ in range(min(self.chunk_rows, len(self.waiting)))]
                worker.owed.extend((next(self.pool.ids), index) for index in indices)
                worker.ask(_line({"rows": [(question, self.rows[index]) for question, index in worker.owed]}))
                worker.deadline_s = self.pool.clock.now_s() + self.row_limit_s
            else:
                worker.owed.append((next(self.pool.ids), -1))
                isolated = self.rule.isolated and not self.may.state
                worker.ask(_line({"id": worker.owed[0][0], "load": self.load, "isolated": isolated}))
                worker.deadline_s = self.pool.clock.now_s() + self.pool.start_limit_s

    def _listen(self) -> None:
        """Wait for the next answers or deadline and handle them; answers that have arrived count before deadlines."""
        for worker in self.workers:
            watched = worker.questions in self.selector.get_map()
            if worker.unsent and not watched:
                self.selector.register(worker.questions, selectors.EVENT_WRITE, worker)
            elif watched and not worker.unsent:
                self.selector.unregister(worker.questions)
        clock = self.pool.clock
        next_s = min((worker.deadline_s for worker in self._busy), default=0.0)
        for key, _ in self.selector.select(min(LOOK_S, max(0.0, next_s - clock.now_s()))):
            worker = key.data
            if worker not in self.workers:
                continue  # lost to an event just before this one
            if key.fileobj == worker.questions:
                worker.send()
            elif key.fileobj is worker.output:
                if worker.read_printed() == b"":
                    self.selector.unregister(worker.output)
            else:
                self._hear(worker)
        for worker in self._busy:
            if worker.deadline_s < clock.now_s():
                self._hear(worker)
                if worker in self.workers and worker.deadline_s < clock.now_s():
                    self._lose(worker, overdue=True)

    def _hear(self, worker: GraderWorker) -> None:
        lines = worker.lines()
        if lines is None:
            self._lose(worker)
            return
        for line in lines:
            question = worker.owed[0][0] if worker.owed else -1
            answer = read_message(ANSWERS if worker.ready else LOADS, line, question)
            if answer is None or isinstance(answer, Forged):
                self._lose(worker, forged=True)
                return
            self._take(worker, answer)
            if isinstance(answer, Answer) and answer.spent:
                self._lose(worker, blamed=False)
                return

    def _take(self, worker: GraderWorker, answer: Answer | LoadAnswer) -> None:
        _, index = worker.owed.popleft()
        worker.deadline_s = self.pool.clock.now_s() + self.row_limit_s if worker.owed else math.inf
        if isinstance(answer, ScoredAnswer):
            self.scores[index] = answer.score
            self.extras[index], self.unreadable = answer.extras, self.unreadable + answer.unreadable
        elif isinstance(answer, Ready):
            worker.ready = True
        else:
            worker.read_printed()
            error = failure(self.rule, answer, self.rows[index] if worker.ready else {}, index, worker.printed)
            if not isinstance(answer, Answer) or isinstance(answer, LacksColumn | LacksTruth):
                raise error
            self._fail(index, error, ended=not isinstance(answer, Raised | BadValue))

    def _fail(self, index: int, error: RuleError, *, ended: bool = True) -> None:
        """Give a failed row the score that `on_error` says, or raise; 0 if it `ended` the process of a shipped rule."""
        if self.rule.shipped and ended:
            self.scores[index], self.unreadable = 0.0, self.unreadable + 1
        elif self.on_error == "fail":
            raise error
        else:
            self.scores[index], self.failures = float(self.on_error), self.failures + 1
        self.failed[index] = error

    def _lose(self, worker: GraderWorker, *, overdue: bool = False, forged: bool = False, blamed: bool = True) -> None:
        """End a worker that hangs, forges, or closed its channel; its first row fails, and the others wait again."""
        for watched in (worker.questions, worker.answers, worker.output):
            if watched in self.selector.get_map():
                self.selector.unregister(watched)
        code = self.pool.end(worker, self.workers)
        hung = overdue and code == -signal.SIGKILL
        text = self.rule.text
        if worker.ready:
            owed = [index for _, index in worker.owed]
            failed = owed[:1] if blamed else []
            self.waiting.extendleft(reversed(owed[len(failed) :]))
            for index in failed:
                notes = notes_of(self.rows[index], index, worker.printed)
                if forged:
                    error = RuleError.forged(text, notes=notes)
                elif hung:
                    error = RuleError.hung(text, self.row_limit_s, notes=notes)
                else:
                    error = RuleError.died(text, ending(code), notes=notes)
                self._fail(index, error)
        elif blamed:
            why = f"it took over {self.pool.start_limit_s:g} s" if hung else f"its process ended: {ending(code)}"
            why = "its process sent an answer without a request" if forged else why
            raise RuleError.not_loaded(text, why, notes=printed_lines(worker.printed))


def _line(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    """Return an array or array scalar in a form that JSON can represent; the text of anything else, such as a date."""
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else str(value)
