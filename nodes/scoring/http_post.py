"""Post JSON to a server, with limits on the bytes of its answer and on the seconds of each request."""

from __future__ import annotations

import http.client
import io
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

KEY_WORDS = ("key", "token", "secret", "pass", "pwd", "auth", "cred", "sig", "code")
LONGEST_OPEN = 20  # characters of a value in a query that can be recorded
JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json", "Accept": "application/json"}


class NoServerError(OSError):
    """A server to which no connection could be made."""


class AnswerTooLongError(http.client.HTTPException):
    """An answer with more bytes than the caller accepts."""


def split_url(url: str) -> SplitResult:
    """Return the parts of a server's URL. Raises ValueError, with the reason, for a text that cannot be one.

    Reasons are a scheme other than http and https, a missing host, a user name or password, an invalid port, and
    characters other than printable ASCII.

    >>> split_url("http://localhost:8000/v1").path
    '/v1'
    """
    parts = urlsplit(url)
    port = parts.port
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it begins with http:// or https:// and names a host")
    if parts.username or parts.password:
        raise ValueError("it holds a name or a password, which would be recorded with the run")
    if re.search(r"[^\x21-\x7e]", url) or port == 0:
        raise ValueError("it holds a space, a control character or a letter beyond ASCII, or the port 0")
    return parts


def variable_in(value: str) -> str:
    """Return the environment variable that a query's value names in braces; "" if the value is any other text.

    >>> variable_in("{JUDGE_KEY}"), variable_in("2024-10-21")
    ('JUDGE_KEY', '')
    """
    named = re.fullmatch(r"\{([A-Za-z_]\w{0,99})\}", value, re.ASCII)
    return named[1] if named else ""


def key_in_query(parts: SplitResult) -> str:
    """Return the name of the first part of a URL's query that holds a key; "" if there is none.

    A part holds a key if its name contains a word such as `key` or `token`, or if its value has over 20 characters,
    unless the value is an environment variable in braces. A part without `=` is "a part without a name".

    >>> key_in_query(split_url("http://a.org/v1?version=1&api_key=x7")), key_in_query(split_url("http://a.org?key={KEY}"))
    ('api_key', '')
    """
    for part in parts.query.split("&"):
        name, equals, value = part.partition("=")
        named = any(word in name.lower() for word in KEY_WORDS) and value
        if (named or len(value if equals else name) > LONGEST_OPEN) and not variable_in(value):
            return name if equals else "a part without a name"
    return ""


class _BoundedReads(io.BufferedReader):
    """The file of an answer; reading to its end at once is refused: http.client does so for a chunk of length -1."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise ValueError("a chunk of a negative length")
        return super().read(size)


class _BoundedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp = _BoundedReads(self.fp.detach())


@dataclass(eq=False)
class OpenRequests:
    """The requests that threads have open, so that another thread can end those that take too long.

    A socket's own time limit is not enough: a server that sends a byte now and then never reaches it.
    """

    _ends_s: dict[http.client.HTTPConnection, float] = field(default_factory=dict[http.client.HTTPConnection, float])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _all_ended: bool = False

    def add(self, connection: http.client.HTTPConnection, limit_s: float) -> None:
        """Record a request that must end within `limit_s` seconds. Raises TimeoutError after `end(overdue=False)`."""
        with self._lock:
            if self._all_ended:
                raise TimeoutError("timed out")
            self._ends_s[connection] = time.monotonic() + limit_s

    def holds(self, connection: http.client.HTTPConnection) -> bool:
        """Return whether a request is recorded and was not ended; `end` cannot close it before it has a socket."""
        with self._lock:
            return connection in self._ends_s

    def remove(self, connection: http.client.HTTPConnection) -> bool:
        """Remove a request from the record; return False if it was not there, for example because `end` ended it."""
        with self._lock:
            return self._ends_s.pop(connection, None) is not None

    def end(self, *, overdue: bool = True) -> None:
        """End the requests that are over their limit; with `overdue` False, end all requests and refuse later ones."""
        now_s = time.monotonic()
        with self._lock:
            self._all_ended = self._all_ended or not overdue
            over = [connection for connection, end_s in self._ends_s.items() if not overdue or end_s < now_s]
            for connection in over:
                del self._ends_s[connection]
                with suppress(OSError):
                    if connection.sock is not None:
                        connection.sock.shutdown(socket.SHUT_RDWR)


def post_json(
    parts: SplitResult,
    body: bytes,
    *,
    limit_s: float,
    answer_bytes: int,
    headers: Mapping[str, str] = JSON_HEADERS,
    under_way: OpenRequests | None = None,
) -> tuple[int, bytes]:
    """Post JSON to a URL, and return the status and the body of the answer; redirections are not followed.

    Each wait for the server takes at most `limit_s` seconds. To limit the whole request too, pass `under_way` and call
    its `end` from another thread now and then. Raises NoServerError if no connection can be made, AnswerTooLongError
    for an answer of more than `answer_bytes` bytes, TimeoutError if a limit is reached, and another OSError or
    HTTPException for an answer that is cut off or not HTTP.
    """
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    # Without a port, http.client would take the end of an IPv6 address for one.
    connection = kind(parts.hostname or "", parts.port or kind.default_port, timeout=limit_s)
    connection.response_class = _BoundedResponse
    under_way = under_way or OpenRequests()
    under_way.add(connection, limit_s)
    try:
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # UnicodeError: a name of a host that no resolver takes
            raise NoServerError(f"{type(error).__name__}: {error}") from error
        if not under_way.holds(connection):
            raise TimeoutError("timed out")
        connection.request("POST", f"{parts.path}?{parts.query}" if parts.query else parts.path, body, dict(headers))
        response = connection.getresponse()
        read = response.read(answer_bytes + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if not under_way.remove(connection):
            raise TimeoutError("timed out") from error
        if isinstance(error, ValueError):  # such as a chunk of a negative length
            raise http.client.HTTPException(f"an answer that is not HTTP: {error}") from error
        raise
    finally:
        in_time = under_way.remove(connection)
        connection.close()
    if not in_time:
        raise TimeoutError("timed out")
    if len(read) > answer_bytes:
        raise AnswerTooLongError(f"its answer is over {answer_bytes >> 20} MiB")
    return response.status, read
