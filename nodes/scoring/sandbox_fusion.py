"""A client of SandboxFusion, a server that runs programs: the remote choice, as where a machine cannot confine one.

Source: https://github.com/bytedance/SandboxFusion, `POST /run_code`.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import SplitResult

from flowgraph.errors import RuleError
from nodes.scoring.http_post import AnswerTooLongError, NoServerError, post_json, split_url
from nodes.scoring.program_child import PRELUDE, RECURSION
from nodes.scoring.programs import Outcome, ProgramLimits

TRIES = 3
WAIT_S = 1.0
COMPILE_S = 10.0
GRACE_S = 10.0  # of a request, besides what its program may take
ANSWER_BYTES = 64 << 20
WHY_CHARACTERS = 200
BUSY = (429, 502, 503, 504)
PATH = "/run_code"

# A program as a script after the prelude, so that it may begin with `from __future__`, and finds what it finds here.
_SCRIPT = """\
{prelude}
sys.setrecursionlimit({recursion})
exec(compile({code!r}, "program.py", "exec"), globals())
"""


class SandboxFusion:
    """Runs programs on a SandboxFusion server, such as `http://localhost:8080`. Raises RuleError for a bad URL."""

    def __init__(self, url: str) -> None:
        self._parts = read_url(url)
        self.url = self._parts._replace(query="", fragment="").geturl()  # for errors

    def run(self, code: str, stdin: str = "", limits: ProgramLimits = ProgramLimits()) -> Outcome:  # noqa: B008
        """Run a Python program on the server, with the standard input `stdin`, and return how it ended.

        Of `limits`, the server gets the seconds and the memory; longer output than they allow counts as a failure. A
        busy server is asked up to three times. Raises RuleError if the server cannot be reached, stays busy, answers
        late, with another status or with too many bytes, or if its answer has no valid result.
        """
        request = {
            "code": _SCRIPT.format(prelude=PRELUDE, recursion=RECURSION, code=code),
            "language": "python",
            "stdin": stdin,
            "compile_timeout": COMPILE_S,
            "run_timeout": limits.wall_s,
            "memory_limit_MB": limits.memory_bytes >> 20,
            "files": {},
            "fetch_files": [],
        }
        return self._outcome(self._answer(request, limits), limits)

    def _answer(self, request: Mapping[str, object], limits: ProgramLimits) -> dict[str, object]:
        why, limit_s, sent = "", COMPILE_S + limits.wall_s + GRACE_S, json.dumps(request).encode()
        for attempt in range(TRIES):
            time.sleep(attempt * WAIT_S)
            try:
                status, body = post_json(self._parts, sent, limit_s=limit_s, answer_bytes=ANSWER_BYTES)
            except (NoServerError, AnswerTooLongError) as error:
                raise self._down(str(error)) from None
            except (OSError, http.client.HTTPException) as error:
                raise self._down(f"{type(error).__name__}: {error}") from None
            why = f"status {status}"
            if status in BUSY:
                continue
            if status != http.HTTPStatus.OK:
                break
            try:
                answer: object = json.loads(body)
            except (ValueError, RecursionError):
                raise self._down("its answer is not JSON") from None
            if isinstance(answer, dict):
                return cast("dict[str, object]", answer)
            raise self._down("its answer is not an object")
        raise self._down(why)

    def _down(self, why: str) -> RuleError:
        return RuleError.sandbox_down(self.url, " ".join(why.split())[:WHY_CHARACTERS])

    def _outcome(self, answer: Mapping[str, object], limits: ProgramLimits) -> Outcome:
        """Read an answer: `status` is Success, Failed or SandboxError; each result's is Finished, Error or a limit."""
        status = answer.get("status")
        if status not in ("Success", "Failed"):
            raise self._down(f"{status}: {answer.get('message')}")
        run, compiled = answer.get("run_result"), answer.get("compile_result")
        result = run if isinstance(run, dict) else compiled if isinstance(compiled, dict) else None
        if result is None:
            raise self._down(f"{status} without a result: {answer.get('message')}")
        code, ended, seconds = result.get("return_code"), result.get("status"), result.get("execution_time")
        if ended not in ("Finished", "Error", "TimeLimitExceeded") or not isinstance(code, int | None):
            raise self._down(f"a result with the status {ended} and the return code {code}")
        stdout, stderr = (str(result.get(name) or "") for name in ("stdout", "stderr"))
        stopped = f"over {limits.wall_s:g} s" if ended == "TimeLimitExceeded" else ""
        if len(stdout) > limits.output_bytes:
            stopped = stopped or f"over {limits.output_bytes >> 10} KiB of output"
        exit_code = code if code is not None else 0 if ended == "Finished" else 1
        if ended == "Error" and exit_code == 0:
            exit_code = 1
        wall_s = float(seconds) if isinstance(seconds, int | float) else 0.0
        return Outcome(stdout=stdout, exit_code=exit_code, stopped=stopped, stderr=stderr, wall_s=wall_s)


def read_url(url: str) -> SplitResult:
    """Return the parts of a sandbox's URL; the path defaults to `/run_code`. Raises RuleError if it is not a URL.

    >>> read_url("http://localhost:8080").path
    '/run_code'
    """
    try:
        parts = split_url(url)
    except ValueError as error:
        raise RuleError.bad_sandbox(url, str(error)) from None
    return parts if parts.path.strip("/") else parts._replace(path=PATH)


def endpoint(url: str) -> str:
    """Return the `HOST:PORT` of a sandbox's URL; the port defaults to 443 or 80. Raises RuleError if it is not a URL.

    >>> endpoint("https://sandbox.example.org/run_code")
    'sandbox.example.org:443'
    """
    parts = read_url(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
