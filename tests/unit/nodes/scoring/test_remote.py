"""Scoring by the server of a model, against a double that speaks the APIs of OpenAI, vLLM and SGLang."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

import pytest

from flowgraph.errors import FlowError, RuleError, SettingError
from nodes import Rollout, remote_judge, remote_reward, score
from nodes.scoring.http_post import AnswerTooLongError, OpenRequests, post_json, split_url
from nodes.scoring.model_server import NoScoreError, number_in
from nodes.scoring.remote import chat_endpoint
from nodes.scoring.text_templates import texts_of
from tests.model_server import Double, Reply, answered, ok, verdict

QUESTIONS, ANSWERS = ("3 + 4?", "2 + 2?"), ("7", "8", "four", "4")


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    monkeypatch.setattr("nodes.scoring.model_server.WAIT_S", 0.01)
    with Double() as server:
        yield server


@pytest.fixture
def rollout() -> Rollout:
    """Return two responses to each of two prompts, with the parts that a scoring node reads."""
    prompts = [
        [{"role": "system", "content": "Add."}, {"role": "user", "content": QUESTIONS[i // 2]}] for i in range(4)
    ]
    return answered(prompts, ANSWERS, ("model", "model", "rule", "rule"))


def told(scores: Any) -> dict[str, tuple[float, float]]:
    return {measure.name: (measure.total, measure.count) for measure in scores.measures}


def test_a_judge_is_asked_about_each_response_and_its_last_score_counts(double: Double, rollout: Rollout) -> None:
    grades = {"7": "[[3]], no: [[ 10 ]]", "8": "Score: **2.5** of 10", "four": "**Score**: 7/10", "4": "[[0]]"}
    double.reply = lambda body: verdict(grades[body["messages"][0]["content"].split("|")[1]])
    template = "{{ prompt }}|{{ response }}|{{ ground_truth }}|{{ messages[0].content }}"
    scores = remote_judge(rollout, url=double.url, model="grader", template=template, max_tokens=9)
    assert scores.data.tolist() == pytest.approx([1.0, 0.25, 0.7, 0.0])
    assert told(scores) | {"reward": 0} == {
        "reward": 0, "full_marks": (1.0, 4), "best": (pytest.approx(1.7), 2), "solved": (1.0, 2), "unscored": (0, 4)
    }  # fmt: skip
    assert [json.loads(extra)["verdict"] for extra in scores.extras or ()] == list(grades.values())
    texts = {body["messages"][0]["content"] for _, body, _ in double.asked}
    assert texts == {f"{QUESTIONS[i // 2]}|{ANSWERS[i]}|{i}|Add." for i in range(4)}
    path, body, key = double.asked[0]
    assert (path, key, body["model"], body["temperature"], body["max_tokens"]) == (
        "/v1/chat/completions", "", "grader", 0.0, 9
    )  # fmt: skip


def test_scale_and_pattern_are_the_users(double: Double, rollout: Rollout) -> None:
    double.reply = lambda body: verdict("grade=-1 grade=3")
    scores = remote_judge(rollout, url=double.url, model="g", pattern=r"grade=(-?\d)", scale=(-5.0, 5.0))
    assert scores.data.tolist() == pytest.approx([0.8] * 4)


NO_MATCH = "no match of the pattern in the verdict"
BAD_VERDICTS: dict[str, tuple[Reply, str]] = {
    "not JSON": ((200, b"<html>"), "its answer is not JSON"),
    "not UTF-8": ((200, b"\xff\xfe\xff"), "its answer is not JSON"),
    "nested deep": ((200, b"[" * 200_000), "its answer is not JSON"),
    "a number of a million digits": ((200, b"1" * 1_000_000), "its answer is not JSON"),
    "a list": (ok([]), "its answer is not an object"),
    "no choices": (ok({"choices": None}), "its answer has no list `choices`"),
    "empty choices": (ok({"choices": []}), "its answer has 0 results for one response"),
    "two choices": (ok({"choices": [{}, {}]}), "its answer has 2 results for one response"),
    "a choice that is a text": (ok({"choices": ["[[7]]"]}), "a result in its answer is not an object"),
    "no message": (ok({"choices": [{}]}), "its answer has no text"),
    "null": (verdict(None), "its answer has no text"),
    "parts": (verdict([{"type": "text", "text": "[[7]]"}]), "its answer has no text"),
    "no score": (verdict("I cannot say."), f"{NO_MATCH}: 'I cannot say.'"),
    "cut off": (
        verdict("It says [[10]], but", finish_reason="length"),
        "the verdict was cut at max_tokens, before its end: 'It says [[10]], but'",
    ),
    "too high": (verdict("[[11]]"), "the verdict's score 11 is not from 0 to 10"),
    "too low": (verdict("[[-1]]"), "the verdict's score -1 is not from 0 to 10"),
    "not a number": (verdict("[[nan]]"), "no match of the pattern"),
    "too long": ((200, b" " * (9 << 20)), "its answer is over 8 MiB"),
    "too long a text": ((400, b'{"message": "maximum\\ncontext"}'), 'status 400: {"message": "maximum\\ncontext"}'),
    "busy": ((429, b""), "status 429:"),
    "broken": ((500, b"\x1b[31moops\x00"), "status 500: ?[31moops?"),
    "nothing": ((0, b""), "RemoteDisconnected"),
}


@pytest.mark.parametrize("name", BAD_VERDICTS)
def test_a_bad_answer_is_an_error_or_scores_what_is_set_and_is_counted(
    double: Double, rollout: Rollout, name: str
) -> None:
    reply, why = BAD_VERDICTS[name]
    bad = "four"
    template = "{{ response }}"
    double.reply = lambda body: reply if body["messages"][0]["content"] == bad else verdict("[[5]]")
    scores = remote_judge(rollout, url=double.url, model="g", template=template, on_error=-1.0)
    assert scores.data.tolist() == [0.5, 0.5, -1.0, 0.5]
    assert told(scores)["unscored"] == (1, 4)
    with pytest.raises(RuleError) as caught:
        remote_judge(rollout, url=double.url, model="g", template=template)
    what, row, hint = str(caught.value).splitlines()
    assert what.startswith(f"the server at {double.url}/v1/chat/completions gave no score: {why}")
    assert row == "    prompt 2, sample 0, response 'four'"
    assert hint == "  hint: on_error=0.0 scores such a response 0.0 and counts it"


def test_a_number_that_a_pattern_of_your_own_finds_must_be_one(double: Double, rollout: Rollout) -> None:
    for text, why in {
        "x": "the verdict's score 'x' is not a number",
        "nan": "the verdict's score nan is not from",
    }.items():
        double.reply = lambda body, text=text: verdict(text)
        with pytest.raises(RuleError, match=why):
            remote_judge(rollout, url=double.url, model="g", pattern="(.+)")


def test_a_busy_server_is_asked_again(double: Double, rollout: Rollout) -> None:
    replies = iter([(503, b""), (0, b""), (429, b""), verdict("[[10]]")])
    double.reply = lambda body: next(replies, verdict("[[10]]"))
    assert remote_judge(rollout, url=double.url, model="g", workers=1).data.tolist() == [1.0] * 4
    assert len(double.asked) == 7


def test_requests_run_in_parallel_up_to_a_bound(double: Double, rollout: Rollout) -> None:
    def slowly(body: dict[str, Any]) -> Reply:
        time.sleep(0.3)
        return verdict("[[1]]")

    double.reply = slowly
    remote_judge(rollout, url=double.url, model="g", workers=2)
    assert double.most_open == 2


def test_a_late_answer_fails_also_if_it_comes_byte_by_byte(double: Double, rollout: Rollout) -> None:
    release = threading.Event()

    def late(body: dict[str, Any]) -> Reply:
        if body["messages"][0]["content"] == "7":
            release.wait(20)
        return verdict("[[5]]")

    double.reply = late
    start = time.monotonic()
    scores = remote_judge(rollout, url=double.url, model="g", template="{{ response }}", limit_s=1.0, on_error=0.0)
    assert scores.data.tolist() == [0.0, 0.5, 0.5, 0.5] and time.monotonic() - start < 15
    with pytest.raises(RuleError, match=r"gave no score: no answer within 1 s"):
        remote_judge(rollout, url=double.url, model="g", template="{{ response }}", limit_s=1.0)
    release.set()


def test_a_server_that_sends_a_byte_now_and_then_is_late_too(rollout: Rollout) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while True:
                    connection.sendall(b"X")
                    time.sleep(0.1)
            except OSError:
                connection.close()

    threading.Thread(target=drip, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(RuleError, match="no answer within 1 s"):
        remote_judge(rollout, url=url, model="g", limit_s=1.0, workers=1)
    assert time.monotonic() - start < 20
    listener.close()


@pytest.mark.parametrize("url", ["http://a..b", f"http://{'a' * 70}.org", "http://[::1]:9"])
def test_a_host_that_cannot_be_reached_is_no_server(
    rollout: Rollout, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.scoring.model_server.WAIT_S", 0.01)
    with pytest.raises(RuleError, match="no server answers at"):
        remote_judge(rollout, url=url, model="g")


def test_an_address_of_ipv6_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    places = list[tuple[str, int]]()
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: places.append((self.host, self.port)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        post_json(split_url("http://[::1]/x"), b"", limit_s=1.0, answer_bytes=1)
    assert places == [("::1", 80)]


@pytest.mark.parametrize("length", [b"-1", b"-5", b"five", b"", b"1" * 70_000])
def test_a_chunk_without_a_valid_length_is_not_http_and_is_not_read_on(length: bytes) -> None:
    sent = list[int]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + length + b"\r\n")
                while sum(sent) < 64 << 20:
                    sent.append(connection.send(bytes(1 << 16)))

        threading.Thread(target=answer, daemon=True).start()
        url = split_url(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        with pytest.raises(HTTPException):
            post_json(url, b"{}", limit_s=5.0, answer_bytes=100)
        time.sleep(0.1)
        assert sum(sent) < 32 << 20, "the connection is closed, and what follows is not read"


def test_chunks_are_one_answer_up_to_the_limit() -> None:
    def replied(chunks: bytes) -> tuple[int, bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer() -> None:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)

            threading.Thread(target=answer, daemon=True).start()
            url = split_url(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
            return post_json(url, b"{}", limit_s=5.0, answer_bytes=6)

    assert replied(b"2\r\nab\r\n4\r\ncdef\r\n0\r\n\r\n") == (200, b"abcdef")
    with pytest.raises(AnswerTooLongError):
        replied(b"2\r\nab\r\n5\r\ncdefg\r\n0\r\n\r\n")


def test_no_request_begins_once_all_were_ended(double: Double) -> None:
    requests = OpenRequests()
    requests.end(overdue=False)
    with pytest.raises(TimeoutError):
        post_json(split_url(double.url), b"{}", limit_s=5.0, answer_bytes=100, under_way=requests)
    assert not double.asked


def test_a_key_of_the_query_is_sent_and_is_in_no_error_or_verdict(
    double: Double, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk&secret/7")
    url = f"{double.url}/v1?version=2024-10-21&key={{JUDGE_KEY}}"
    path = "/v1/chat/completions?version=2024-10-21&key=sk%26secret%2F7"
    double.KNOWN = {path: double.KNOWN["/v1/chat/completions"]}  # type: ignore[misc]
    double.reply = lambda body: verdict("sk&secret/7 [[5]]")
    scores = remote_judge(rollout, url=url, model="g")
    assert {asked for asked, _, _ in double.asked} == {path}
    assert json.loads((scores.extras or ())[0]) == {"verdict": "*** [[5]]"}
    double.reply = lambda body: (404, b"no /v1?key=sk%26secret%2F7 or sk&secret/7")
    with pytest.raises(RuleError, match=r"completions refused a request: status 404: no /v1\?key=\*\*\* or \*\*\*\n"):
        remote_judge(rollout, url=url, model="g")
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(RuleError, match="JUDGE_KEY holds no key"):
        remote_judge(rollout, url=url, model="g")


@pytest.mark.parametrize(
    "query", ["key=sk7", "a=1&api_key=sk7", "X-Sig=sk7", "k=sk7sk7sk7sk7sk7sk7sk7", "sk7sk7sk7sk7sk7sk7sk7sk7"]
)
def test_a_key_in_a_url_is_refused_and_not_printed(rollout: Rollout, query: str) -> None:
    for refused in (
        lambda: remote_judge(rollout, url=f"http://localhost/v1?{query}", model="g"),
        lambda: remote_reward(rollout, url=f"http://me:sk7@localhost/v1?{query}"),
        lambda: score(rollout, sandbox=f"http://localhost/run_code?{query}"),
    ):
        with pytest.raises(SettingError, match="which would be recorded with the run") as caught:
            refused()
        assert "sk7" not in str(caught.value), "the error may stand in a log"


def test_a_pattern_whose_time_grows_exponentially_ends_at_a_limit_and_other_threads_run_on(
    double: Double, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.scoring.remote_settings.PATTERN_LIMIT_S", 0.5)
    double.reply = lambda body: verdict("a" * 5_000 + "!" if body["messages"][0]["content"] == "7" else "aaa")
    settings: Any = {"url": double.url, "model": "g", "template": "{{ response }}", "workers": 1}
    end, turns = threading.Event(), list[float]()

    def run_on() -> None:
        while not end.wait(0.01):
            turns.append(time.monotonic())

    thread = threading.Thread(target=run_on)
    thread.start()
    scores = remote_judge(rollout, pattern=r"((?:a|a)+)$", on_error=0.25, **settings)
    end.set()
    thread.join()
    assert scores.data.tolist() == [0.25] * 4 and told(scores)["unscored"] == (4, 4)
    gaps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(gaps) < 0.4, "a match that held up other threads would take half a second"
    with pytest.raises(RuleError, match="the pattern takes over"):
        remote_judge(rollout, pattern=r"((?:a|a)+)$", **settings)


def test_the_key_is_in_no_verdict(double: Double, rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-7")
    double.reply = lambda body: verdict("sk-secret-7 [[5]]")
    scores = remote_judge(rollout, url=double.url, model="g", api_key_env="JUDGE_KEY")
    assert json.loads((scores.extras or ())[0]) == {"verdict": "*** [[5]]"}


def test_a_call_has_a_limit_of_its_own(double: Double, rollout: Rollout) -> None:
    release = threading.Event()
    double.reply = lambda body: (release.wait(20), verdict("[[5]]"))[1]
    settings: Any = {"url": double.url, "model": "g", "call_limit_s": 0.5}
    with pytest.raises(RuleError, match=r"scored 0 of 4 responses within 0\.5 s, the limit of one call"):
        remote_judge(rollout, **settings)
    scores = remote_judge(rollout, on_error=0.25, **settings)
    assert scores.data.tolist() == [0.25] * 4 and told(scores)["unscored"] == (4, 4)
    release.set()


def test_without_a_server_the_run_ends_whatever_on_error_is(rollout: Rollout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.scoring.model_server.WAIT_S", 0.01)
    with pytest.raises(RuleError) as caught:
        remote_judge(rollout, url="http://127.0.0.1:9", model="g", on_error=0.0)
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    what, hint = str(caught.value).splitlines()
    assert what == f"no server answers at http://127.0.0.1:9/v1/chat/completions: {refused}"
    assert hint.startswith("  hint: start it, as with `vllm serve MODEL`")


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "api_key_env="), (403, "api_key_env="), (404, "url="), (302, "url=")]
)
def test_a_server_that_refuses_every_request_ends_the_run(
    double: Double, rollout: Rollout, status: int, hint: str
) -> None:
    double.reply = lambda body: (status, b'{"error": "no"}')
    with pytest.raises(RuleError, match=f'refused a request: status {status}: {{"error": "no"}}') as caught:
        remote_judge(rollout, url=double.url, model="g", on_error=0.0)
    assert hint in caught.value.hint and len(double.asked) <= 8


def test_the_key_comes_from_the_environment_and_is_in_no_error(
    double: Double, rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-7")
    double.reply = lambda body: (401, b"bad key sk-secret-7 given")
    with pytest.raises(RuleError, match=r"refused a request: status 401: bad key \*\*\* given"):
        remote_judge(rollout, url=double.url, model="g", api_key_env="JUDGE_KEY")
    assert {key for _, _, key in double.asked} == {"Bearer sk-secret-7"}
    for value in ("", "two words", "line\nX: y"):
        monkeypatch.setenv("JUDGE_KEY", value)
        with pytest.raises(RuleError, match="JUDGE_KEY holds no key"):
            remote_judge(rollout, url=double.url, model="g", api_key_env="JUDGE_KEY")


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        *(("url", url, "is not the URL of a server") for url in ("localhost:8000", "http://me:key@host", "http://a b")),
        ("api_key_env", "sk-secret-7", "the name of an environment variable"),
        ("pattern", "(", "is not a regular expression"),
        ("pattern", r"\d+", "should have one group"),
        ("pattern", r"(\d)(\d)", "should have one group"),
        ("pattern", f"({'a' * 1_000})", "at most 1,000 characters"),
        ("pattern", "(((a{1000}){,1000}){2,1000})", "multiply to 10,000"),
        ("scale", (5.0, 5.0), "the lowest and the highest"),
        ("scale", (0.0, float("inf")), "finite"),
        ("limit_s", 1e300, "less than or equal"),
        ("on_error", 1e300, "less than or equal"),
        ("template", "{{ response", "is not a Jinja2 template: line 1"),
        ("template", "{% import 'os' as os %}{{ response", "is not a Jinja2 template"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(rollout: Rollout, setting: str, value: object, why: str) -> None:
    settings: Any = {"url": "http://localhost:8000", "model": "g", setting: value}
    with pytest.raises(SettingError, match=why):
        remote_judge(rollout, **settings)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ respons }}", "the template uses `respons`, but no column has that name"),
        ("{{ extra.key }}", "the template uses `extra`"),
        ("{{ response.__class__.__mro__ }}", "the template fails on row 0"),
        ("{{ messages.append(1) }}", "the template fails on row 0"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "the template fails on row 0"),
        ("{{ none }}", "the template fails on row 0"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "the template fails on row 0"),
        ("{% include '/etc/passwd' %}", "the template fails on row 0"),
        ("{{ 1 // 0 }}", "the template fails on row 0"),
    ],
)
def test_a_template_reads_columns_and_nothing_else(template: str, why: str) -> None:
    with pytest.raises(FlowError) as caught:
        texts_of(template, [{"response": "7", "messages": []}])
    assert str(caught.value).startswith(why)


def test_a_response_is_never_a_template() -> None:
    text = "{{ 7 * 7 }}{% raw %}<b>&"
    assert texts_of("{{ response }}|{{ prompt }}", [{"response": text, "prompt": "{{ response }}"}]) == [
        f"{text}|{{{{ response }}}}"
    ]


APIS: dict[str, tuple[str, object]] = {
    "vllm/classify": ("/classify", {"data": [{"index": 0, "label": "LABEL_0", "probs": [-1.5], "num_classes": 1}]}),
    "vllm/pooling": ("/pooling", {"data": [{"index": 0, "object": "pooling", "data": [-1.5]}]}),
    "sglang/classify": ("/classify", [{"embedding": [-1.5], "meta_info": {"prompt_tokens": 3}}]),
}


@pytest.mark.parametrize("api", APIS)
def test_a_reward_model_reads_each_response_in_its_servers_form(double: Double, rollout: Rollout, api: Any) -> None:
    path, answer = APIS[api]
    double.reply = lambda body: ok(answer)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    scores = remote_reward(rollout, url=double.url, model="rm", api=api, template=template)
    assert scores.data.tolist() == [-1.5] * 4
    text = f"<system>Add.<user>{QUESTIONS[1]}<assistant>four"
    asked = {json.dumps(body.get("text", body.get("input"))) for _, body, _ in double.asked}
    assert json.dumps([text]) in asked and len(asked) == 4
    assert {path for path, _, _ in double.asked} == {path}
    if api != "sglang/classify":
        assert all(body["use_activation"] is False for _, body, _ in double.asked)


def test_vllm_applies_the_models_own_template_unless_there_is_one(double: Double, rollout: Rollout) -> None:
    double.reply = lambda body: ok(APIS["vllm/classify"][1])
    remote_reward(rollout, url=f"{double.url}/classify")
    chats = [body["messages"] for _, body, _ in double.asked]
    messages = [("system", "Add."), ("user", QUESTIONS[0]), ("assistant", "8")]
    assert [{"role": role, "content": content} for role, content in messages] in chats
    assert all(body.keys() == {"messages", "use_activation"} for _, body, _ in double.asked)
    with pytest.raises(RuleError, match="applies no chat template"):
        remote_reward(rollout, url=double.url, api="sglang/classify")


def test_a_pooled_model_of_tokens_scores_by_its_last_token(double: Double, rollout: Rollout) -> None:
    double.reply = lambda body: ok({"data": [{"data": [[1.0], [2.0], [0.5]]}]})
    assert remote_reward(rollout, url=double.url, api="vllm/pooling").data.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("api", "answer", "why"),
    [
        ("vllm/classify", b'{"data": [{"probs": [NaN]}]}', "NaN is not a finite number"),
        ("vllm/classify", b'{"data": [{"probs": [1e39]}]}', "1e+39 is not a finite number"),
        ("vllm/classify", b'{"data": [{"probs": ["1"]}]}', '"1" is not a finite number'),
        ("vllm/classify", b'{"data": [{"probs": [true]}]}', "true is not a finite number"),
        ("vllm/classify", b'{"data": [{"probs": [null]}]}', "null is not a finite number"),
        ("vllm/classify", b'{"data": [{"probs": [0.1, 0.9]}]}', "2 numbers for a response"),
        ("vllm/classify", b'{"data": [{"probs": 1}]}', "its answer has no list of numbers"),
        ("vllm/classify", b'{"data": [{"probs": [1]}, {"probs": [1]}]}', "2 results for one response"),
        ("vllm/classify", b'{"data": [[1]]}', "a result in its answer is not an object"),
        ("vllm/classify", b'[{"embedding": [1]}]', "its answer is not an object"),
        ("vllm/pooling", b'{"data": [{"data": []}]}', "0 numbers for a response"),
        ("vllm/pooling", b'{"data": [{"data": "AACA"}]}', "its answer has no list of numbers"),
        ("vllm/pooling", b'{"data": [{"data": [[1, 2]]}]}', "2 numbers for a response"),
        ("sglang/classify", b'{"embedding": [1]}', "its answer has no list"),
        ("sglang/classify", b'[{"embedding": [1, 2]}]', "2 numbers for a response"),
        ("sglang/classify", b"[]", "0 results for one response"),
    ],
)
def test_a_bad_answer_of_a_reward_model_gives_no_score(
    double: Double, rollout: Rollout, api: Any, answer: bytes, why: str
) -> None:
    double.reply = lambda body: (200, answer)
    with pytest.raises(RuleError, match="gave no score") as caught:
        remote_reward(rollout, url=double.url, api=api, template="{{ response }}")
    assert why in str(caught.value)
    scores = remote_reward(rollout, url=double.url, api=api, template="{{ response }}", on_error=0.0)
    assert told(scores)["unscored"] == (4, 4) and scores.data.tolist() == [0.0] * 4


def test_a_number_that_no_float_holds_is_none() -> None:
    with pytest.raises(NoScoreError):
        number_in([10**400])


def test_the_endpoint_keeps_the_path_of_an_api() -> None:
    assert chat_endpoint("https://host/v1/chat/completions?x=1").geturl() == "https://host/v1/chat/completions?x=1"
    assert chat_endpoint("http://host:8000/v1").path == "/v1/chat/completions"


def test_rows_of_both_styles_are_scored_by_the_server(double: Double, rollout: Rollout) -> None:
    styles = [row["style"] for row in rollout.columns.data.column("reward_model").to_pylist()]
    assert set(styles) == {"model", "rule"}
    assert remote_judge(rollout, url=double.url, model="g").data.tolist() == pytest.approx([0.7] * 4)
