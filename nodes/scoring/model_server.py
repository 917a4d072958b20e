"""A client of a server that scores responses by a model: requests in parallel, with limits, retries and checks."""

from __future__ import annotations

import functools
import http.client
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, quote

from flowgraph.errors import RuleError
from nodes.scoring.grader_messages import LARGEST_SCORE, notes_of
from nodes.scoring.graders import OnError, default_call_limit
from nodes.scoring.http_post import (
    JSON_HEADERS,
    AnswerTooLongError,
    NoServerError,
    OpenRequests,
    post_json,
    variable_in,
)
from nodes.scoring.rule_forms import finite

TRIES = 5
WAIT_S = 1.0  # before the second try; each further wait is twice as long
LOOK_S = 0.2
ANSWER_BYTES = 8 << 20
WHY_CHARACTERS = 200
TOO_MANY = 429
OF_ONE_ROW = (400, 413, 422)  # a text that is too long for the model, for example

Body = Mapping[str, object]


class NoScoreError(ValueError):
    """An answer that contains no score; the text says why."""


@dataclass(frozen=True)
class Scored:
    """The score of a response, and the text that a judge wrote, if any."""

    score: float
    verdict: str = ""


@dataclass(eq=False, kw_only=True)
class ModelServer:
    """Scores responses at a URL, with up to `workers` requests at a time, each within `limit_s` seconds.

    A call may take `call_limit_s` seconds: by default `limit_s` · responses / `workers` / 4, and at least 12 times
    `limit_s`. `key` is sent as a bearer token. In the query of `parts`, environment variables in braces are replaced by
    their values. The key and these values are removed from the server's texts. Raises RuleError for a variable that is
    not set.
    """

    parts: SplitResult
    workers: int
    limit_s: float
    call_limit_s: float | None = None
    key: str = ""
    _under_way: OpenRequests = field(default_factory=OpenRequests)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _keys: list[str] = field(default_factory=list[str])
    _query: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._keys += [self.key] if self.key else []
        for part in self.parts.query.split("&"):
            name, equals, value = part.partition("=")
            if variable := variable_in(value):
                self._keys.append(key_in(variable))
                value = quote(self._keys[-1], safe="")
            self._query.append(f"{name}{equals}{value}")

    @property
    def url(self) -> str:
        """Return the URL without its query and fragment, for errors."""
        return self.parts._replace(query="", fragment="").geturl()

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the HTTP headers of each request; the key, if any, is a bearer token."""
        return {**JSON_HEADERS, "Authorization": f"Bearer {self.key}"} if self.key else JSON_HEADERS

    def score(
        self,
        bodies: Sequence[Body],
        read: Callable[[object], Scored],
        rows: Sequence[Mapping[str, object]],
        on_error: OnError,
    ) -> list[Scored | None]:
        """Post each of `bodies` and return the scores in the answers, in order; None for a response that failed.

        `read` gets an answer's JSON and raises NoScoreError if it contains no score. `rows` identify the responses in
        errors. A response fails if the server gives it no valid score within the limits. If `on_error` is "fail", the
        first failure raises RuleError; otherwise None stands for it. RuleError is always raised if no connection can be
        made, or if the server refuses the key, the path or the model. Use each ModelServer for one call only.
        """
        results = dict[int, Scored | None]()
        ended = queue.SimpleQueue[tuple[int, Future[Scored | NoScoreError]]]()
        limit_s = self.call_limit_s or default_call_limit(self.limit_s, len(bodies), self.workers)
        end_s = time.monotonic() + limit_s
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="model-server")
        try:
            for index, body in enumerate(bodies):
                future = pool.submit(self._ask, json.dumps(body).encode(), read)
                future.add_done_callback(functools.partial(lambda place, result: ended.put((place, result)), index))
            while len(results) < len(bodies):
                self._under_way.end()
                with suppress(queue.Empty):
                    index, future = ended.get(timeout=LOOK_S)
                    result = future.result()
                    if isinstance(result, NoScoreError) and on_error == "fail":
                        notes = notes_of(rows[index], index, b"")
                        raise RuleError.unscored(self.url, self._told(str(result)), notes=notes)
                    results[index] = result if isinstance(result, Scored) else None
                if time.monotonic() > end_s:
                    missing = next(index for index in range(len(bodies) + 1) if index not in results)
                    if missing < len(bodies) and on_error == "fail":
                        notes = notes_of(rows[missing], missing, b"")
                        raise RuleError.overtime(self.url, limit_s, len(results), len(bodies), notes=notes)
                    results = {index: results.get(index) for index in range(len(bodies))}
        finally:
            self._stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            self._under_way.end(overdue=False)
        return [results[index] for index in range(len(bodies))]

    def _ask(self, body: bytes, read: Callable[[object], Scored]) -> Scored | NoScoreError:
        why = ""
        for attempt in range(TRIES):
            if self._stopped.wait(WAIT_S * 2 ** (attempt - 1) if attempt else 0.0):
                break
            try:
                status, answer = post_json(
                    self.parts._replace(query="&".join(self._query)),
                    body,
                    limit_s=self.limit_s,
                    answer_bytes=ANSWER_BYTES,
                    headers=self.headers,
                    under_way=self._under_way,
                )
            except NoServerError as error:
                if attempt == TRIES - 1:
                    raise RuleError.no_server(self.url, self._told(str(error))) from None
                continue
            except TimeoutError:
                return NoScoreError(f"no answer within {self.limit_s:g} s")
            except AnswerTooLongError as error:
                return NoScoreError(str(error))
            except (OSError, http.client.HTTPException) as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if status == http.HTTPStatus.OK:
                try:
                    scored = read(json.loads(answer))
                    return replace(scored, verdict=self._without_key(scored.verdict))
                except (ValueError, RecursionError) as error:
                    return error if isinstance(error, NoScoreError) else NoScoreError("its answer is not JSON")
            why = f"status {status}: {answer.decode(errors='replace')}"
            if status in OF_ONE_ROW:
                break
            if status != TOO_MANY and status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                raise RuleError.server_refused(self.url, status, self._told(why))
        return NoScoreError(why)

    def _without_key(self, text: str) -> str:
        for key in self._keys:
            text = text.replace(key, "***").replace(quote(key, safe=""), "***")
        return text

    def _told(self, why: str) -> str:
        words = " ".join(self._without_key(why).split())
        return "".join(letter if letter.isprintable() else "?" for letter in words)[:WHY_CHARACTERS]


def key_in(variable: str) -> str:
    """Return the key in an environment variable; "" if `variable` is "".

    Raises RuleError if the variable is not set, or is not printable ASCII without spaces.
    """
    key = os.environ.get(variable, "") if variable else ""
    if variable and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise RuleError.no_key(variable)
    return key


def number_in(values: object) -> float:
    """Return the only number of a list, which is how a reward model with one label answers.

    Raises NoScoreError for anything but a list of one finite number.

    >>> number_in([0.5])
    0.5
    """
    if not isinstance(values, list):
        raise NoScoreError("its answer has no list of numbers")
    if len(values) != 1:
        raise NoScoreError(f"{len(values)} numbers for a response; a reward model has one label")
    number = None if isinstance(values[0], bool) else finite(values[0])
    if number is None or abs(number) > LARGEST_SCORE:
        raise NoScoreError(f"{json.dumps(values[0])[:WHY_CHARACTERS]} is not a finite number")
    return number


def only_item(answer: object, name: str) -> Mapping[str, object]:
    """Return the only object in the list `name` of an answer; if `name` is "", the answer itself is the list.

    Raises NoScoreError if the answer has another form, or if its list has not exactly one entry.
    """
    if name and not isinstance(answer, dict):
        raise NoScoreError("its answer is not an object")
    items: object = answer.get(name) if name and isinstance(answer, dict) else answer
    if not isinstance(items, list):
        raise NoScoreError(f"its answer has no list{f' `{name}`' if name else ''}")
    if len(items) != 1:
        raise NoScoreError(f"its answer has {len(items)} results for one response")
    item: object = items[0]
    if not isinstance(item, dict):
        raise NoScoreError("a result in its answer is not an object")
    return item
