"""The remote sandbox, against a double that speaks SandboxFusion's `POST /run_code`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from flowgraph.errors import RuleError
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders
from nodes.scoring.program_tests import as_call
from nodes.scoring.programs import ProgramHost, ProgramLimits
from nodes.scoring.rules import resolve
from nodes.scoring.sandbox_fusion import SandboxFusion, endpoint
from tests.json_server import JsonServer, Reply

confines = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")


class Double(JsonServer):
    """Speaks SandboxFusion's API: the fields that it documents, the defaults, and no field that it does not know."""

    KNOWN = {  # noqa: RUF012
        "code": str,
        "language": str,
        "stdin": str | None,
        "compile_timeout": float | int,
        "run_timeout": float | int,
        "memory_limit_MB": int,
        "files": dict,
        "fetch_files": list,
    }

    def __init__(self) -> None:
        self.requests = list[dict[str, Any]]()
        self.reply: Callable[[dict[str, Any]], Reply] = lambda request: success("")
        super().__init__()
        self.url += "/run_code"

    def answer(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        self.requests.append(body)
        wrong = [name for name, value in body.items() if not isinstance(value, self.KNOWN.get(name, type(None)))]
        reply = (422, json.dumps({"detail": wrong}).encode()) if wrong else self.reply(body)
        return reply if path == "/run_code" else (404, b'{"detail":"Not Found"}')


def answered(status: str, /, **run: object) -> Reply:
    result = {"status": "Finished", "execution_time": 0.02, "return_code": 0, "stdout": "", "stderr": "", **run}
    body = {"status": status, "message": "", "compile_result": None, "run_result": result}
    return 200, json.dumps({**body, "executor_pod_name": None, "files": {}}).encode()


def success(stdout: str) -> Reply:
    return answered("Success", stdout=stdout)


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as server:
        yield server


def test_a_request_has_the_fields_that_are_documented(double: Double) -> None:
    double.reply = lambda request: success(request["stdin"])
    outcome = SandboxFusion(double.url).run("print(1)", "in", ProgramLimits(wall_s=2.5, memory_bytes=256 << 20))
    assert (outcome.stdout, outcome.exit_code, outcome.failure, outcome.wall_s) == ("in", 0, "", 0.02)
    (request,) = double.requests
    assert set(request) == set(Double.KNOWN)
    assert (request["language"], request["run_timeout"], request["memory_limit_MB"]) == ("python", 2.5, 256)


@confines
def test_the_script_that_is_sent_does_what_it_does_here(double: Double) -> None:
    """The double runs what it gets in our own sandbox, so the text that is sent is a program that works."""
    with ProgramHost() as host:

        def run(request: dict[str, Any]) -> Reply:
            outcome = host.run(request["code"], request["stdin"])
            failed = {"status": "Error", "return_code": 1, "stderr": outcome.stderr}
            return answered("Failed", **failed) if outcome.failure else success(outcome.stdout)

        double.reply = run
        remote = SandboxFusion(double.url)
        for code, stdin in (
            ("from __future__ import annotations\nprint(deque(map(int, stdin.read().split())))", "1 2"),
            ("if __name__ == '__main__':\n    print('''a\\n\"b\"''', gcd(4, 6))", ""),
            (as_call("class Solution:\n    def add(self, a, b): return a + b", "add"), "[1, 2]"),
            ("1 / 0", ""),
        ):
            here, there = host.run(code, stdin), remote.run(code, stdin)
            assert (here.stdout, here.exit_code, here.failure) == (there.stdout, there.exit_code, there.failure)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (answered("Success", stdout="1\n"), ""),
        (answered("Failed", status="TimeLimitExceeded", return_code=None), "over 10 s"),
        (answered("Failed", return_code=3), "exit code 3"),
        (answered("Failed", status="Error", return_code=None, stderr="Killed\n"), "Killed"),
        (answered("Failed", status="Error", return_code=0), "exit code 1"),
        (answered("Success", stdout="x" * (5 << 20)), "over 4096 KiB of output"),
        (answered("Success", stdout=None, stderr=None, execution_time=None), ""),
    ],
)
def test_each_way_to_end_is_read(double: Double, reply: Reply, failure: str) -> None:
    double.reply = lambda request: reply
    assert SandboxFusion(double.url).run("pass").failure == failure


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ((200, b'{"status": "SandboxError", "message": "no\\nworkers"}'), "SandboxError: no workers"),
        ((200, b'{"status": "Success", "run_result": null}'), "Success without a result: None"),
        ((200, b'{"status": "Failed", "run_result": {"status": "Odd", "return_code": 1}}'), "with the status Odd"),
        ((200, b'{"status": "Failed", "run_result": {"status": "Error", "return_code": "1"}}'), "return code 1"),
        ((200, b"[]"), "its answer is not an object"),
        ((200, b"<html>"), "its answer is not JSON"),
        ((200, b"[" * 100_000), "its answer is not JSON"),
        ((500, b"{}"), "status 500"),
        ((302, b""), "status 302"),
        ((0, b""), "RemoteDisconnected"),
    ],
)
def test_a_server_that_gives_no_result_is_an_error_not_a_wrong_answer(double: Double, reply: Reply, why: str) -> None:
    double.reply = lambda request: reply
    with pytest.raises(RuleError, match="ran no program") as caught:
        SandboxFusion(double.url).run("pass")
    assert why in str(caught.value) and "\n\n" not in str(caught.value)


def test_a_busy_server_is_asked_again_three_times(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()
    monkeypatch.setattr("nodes.scoring.sandbox_fusion.time.sleep", waits.append)
    replies = iter([(504, b""), (429, b""), success("late")])
    double.reply = lambda request: next(replies)
    assert SandboxFusion(double.url).run("pass").stdout == "late"
    double.reply = lambda request: (503, b"")
    with pytest.raises(RuleError, match="status 503"):
        SandboxFusion(double.url).run("pass")
    assert waits == [0.0, 1.0, 2.0] * 2


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RuleError) as caught:
        SandboxFusion("http://127.0.0.1:9/run_code").run("pass")
    why = "ran no program: ConnectionRefusedError: [Errno 111] Connection refused"
    hint = "the URL is that of SandboxFusion's run_code, e.g. http://localhost:8080/run_code"
    assert str(caught.value) == f"the sandbox at http://127.0.0.1:9/run_code {why}\n  hint: {hint}"


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:8080", "ftp://host/run_code", "http://", "http://host:99999", "http://host:x", "http://[1"),
        *("file:///etc", "http://me:key@host/run_code", "http://host/a b", "http://host/\nX: y", "http://host:0/"),
    ],
)
def test_a_text_that_is_no_url_of_a_sandbox_is_refused(url: str) -> None:
    with pytest.raises(RuleError, match="is not the URL of a sandbox"):
        SandboxFusion(url)
    with Graders(sandbox=url) as pool, pytest.raises(RuleError, match="is not the URL of a sandbox"):
        pool.grade(resolve("prime_code"), [])


def test_the_endpoint_is_what_a_client_must_reach() -> None:
    assert endpoint("http://[::1]:8080/run_code") == "[::1]:8080"
    assert endpoint("http://sandbox/") == "sandbox:80"


@pytest.mark.slow(group="graders")
@confines
def test_a_confined_grader_reaches_the_sandbox_and_nothing_else(double: Double) -> None:
    double.reply = lambda request: success(str(2 * int(request["stdin"])))
    other = Double()
    row = {"response": "print(2)", "ground_truth": {"inputs": ["1", "3"], "outputs": ["2", "6"]}}
    with Graders(sandbox=double.url) as pool:
        assert pool.grade(resolve("prime_code"), [row]).scores == (1.0,)
        assert [request["stdin"] for request in double.requests] == ["1", "3"]
        (worker,) = pool._workers
        assert not worker.process.poll()
    other.server.shutdown()
    other.server.server_close()


def test_where_nothing_can_be_confined_the_remote_sandbox_runs_programs(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("programs", "grader_rights"):
        monkeypatch.setattr(f"nodes.scoring.{module}.lacks", lambda: "the kernel has no Landlock")
    double.reply = lambda request: success("2")
    row = {"response": "print(2)", "ground_truth": {"inputs": ["1"], "outputs": ["2"]}}
    with Graders(sandbox=double.url) as pool:
        assert pool.grade(resolve("prime_code"), [row]).scores == (1.0,)


@pytest.mark.slow(group="graders")
def test_a_sandbox_that_is_down_ends_the_run_and_scores_nothing() -> None:
    row = {"response": "print(2)", "ground_truth": {"inputs": ["1"], "outputs": ["2"]}}
    with Graders(sandbox="http://127.0.0.1:9/run_code") as pool:
        with pytest.raises(RuleError, match="ran no program"):
            pool.grade(resolve("prime_code"), [row])
        assert pool.grade(resolve("prime_code"), [row], on_error=-1.0).failures == 1
