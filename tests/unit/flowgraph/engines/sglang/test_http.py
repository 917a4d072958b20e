"""Servers that answer with errors, nonsense, the wrong version or not at all: each is told, none is believed."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.engines.servers import remote_model
from flowgraph.engines.servers.sample_answer import read_answer
from flowgraph.engines.servers.server_control import ServerControl, certificates
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.sglang import SGLANG
from flowgraph.engines.sglang.server import Sglang, SglangModel, question
from flowgraph.engines.weight_sync.weight_updates import INCOMPLETE, WeightUpdates
from flowgraph.errors import LawError, WorkerError
from flowgraph.language import Key
from flowgraph.language.handle import Optimizer, SampleRequest, Stopping, Truncation, gather
from tests.unit.flowgraph.engines.servers.replicas import Handler, Tokens, drawn, encoded, replicas

REQUEST = SampleRequest((5, 6), 3, 1, 4, 0.7, Key(1, 2, "g"))


def answer(ids: tuple[int, ...] = (7, 8, 9, 10), reason: str = "length", **told: Any) -> dict[str, Any]:
    """Return a whole answer to a sample, as SGLang gives it."""
    meta = {
        "finish_reason": {"type": reason},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
    }
    return {"output_ids": list(ids), "meta_info": meta | told}


@pytest.fixture
def replica() -> Iterator[Callable[..., Any]]:
    yield from replicas(SGLANG.newest, key="k")


def sampled(*doors: ServerAddress, requests: tuple[SampleRequest, ...] = (REQUEST,), **settings: Any) -> list[Any]:
    """Draw samples from servers."""
    return drawn(SglangModel, *doors, requests=requests, **settings)


def test_a_question_holds_token_ids_and_leaves_no_setting_to_the_server(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, encoded(answer())))
    (done,) = sampled(server.door)
    assert done.tokens == (7, 8, 9, 10)
    assert (done.logprobs, done.finished, done.versions) == ((-0.5,) * 4, False, ((0, 0),))
    ((path, body, headers),) = server.asked
    assert (path, headers["Authorization"]) == ("/generate", "Bearer k")
    assert body["input_ids"] == [5, 6]
    settings = body["sampling_params"]
    assert 0 <= settings.pop("sampling_seed") < 2**63
    assert settings == {
        "temperature": 0.7,
        "max_new_tokens": 4,
        "stop_token_ids": [2],
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def test_a_truncated_sample_has_the_log_probs_of_the_tokens_that_were_kept(replica: Callable[..., Any]) -> None:
    kept = [-0.1, -0.2, -0.3, 1e-7]
    request = replace(REQUEST, truncation=Truncation(top_p=0.9), stopping=Stopping(ids=(9,)))
    server = replica(lambda path: (200, encoded(answer(output_token_sampling_logprobs=kept))))
    (done,) = sampled(server.door, requests=(request,))
    assert (done.tokens, done.logprobs, done.finished) == ((7, 8, 9), (-0.1, -0.2, -0.3), True)
    ((_, body, _),) = server.asked
    settings = body["sampling_params"]
    assert body["return_sampling_mask"] and settings["stop_token_ids"] == [2, 9]
    assert (settings["top_p"], settings["top_k"], settings["min_p"]) == (0.9, 4096, 0.0), "a mask needs a finite top_k"
    older = replica(lambda path: (200, encoded(answer())))
    with pytest.raises(WorkerError, match="it lacks log-probs of the truncated distribution"):
        sampled(older.door, requests=(request,))


def test_settings_are_sent_as_they_are_meant_and_others_are_refused() -> None:
    def sent(vocabulary: int | None = 100, **settings: Any) -> dict[str, Any]:
        body = question(replace(REQUEST, **settings), [2], vocabulary)
        return {**body["sampling_params"], "masked": body.get("return_sampling_mask", False)}

    assert sent(truncation=Truncation(min_p=0.1))["top_k"] == 100
    assert sent(truncation=Truncation(top_k=7))["top_k"] == 7 and sent(truncation=Truncation(top_k=999))["top_k"] == 100
    assert sent(truncation=Truncation(top_k=7), temperature=0.0) == sent(temperature=0.0), "greedy"
    assert sent(stopping=Stopping(texts=("a",))) == sent(), "texts are cut here"
    assert sent(stopping=Stopping(ignore_eos=True))["ignore_eos"] is True and "ignore_eos" not in sent()
    with pytest.raises(WorkerError, match=r"`sglang` does not sample with repetition_penalty=1\.1, as `local` does"):
        sent(repetition_penalty=1.1)
    with pytest.raises(WorkerError, match=r"`sglang` does not sample with top_k=7 with top_p=0\.9"):
        sent(truncation=Truncation(top_k=7, top_p=0.9))


def test_seeds_are_named_by_the_key_and_the_sample() -> None:
    def seed(prompt: int, sample: int, key: Key) -> int:
        asked = SampleRequest((5,), prompt, sample, 4, 1.0, key)
        number = question(asked, [])["sampling_params"]["sampling_seed"]
        assert isinstance(number, int)
        return number

    seeds = {seed(prompt, sample, Key(run)) for prompt in range(9) for sample in range(9) for run in range(9)}
    assert len(seeds) == 9**3
    assert seed(1, 2, Key(3)) == seed(1, 2, Key(3))


WRONG = {
    "an empty answer": b"",
    "nonsense": b"<html>502</html>",
    "a list": b"[]",
    "half of an answer": encoded(answer())[:60],
    "no tokens": encoded(answer(())),
    "too many tokens": encoded(answer((1, 2, 3, 4, 5))),
    "cut off": encoded(answer((7,))),
    "aborted": encoded(answer(reason="abort")),
    "a negative token": encoded(answer((-1, 8, 9, 10))),
    "a token that is a word": encoded(answer() | {"output_ids": ["7", "8", "9", "x"]}),
    "log-probs of other tokens": encoded(answer(output_token_logprobs=[[-0.5, 1, None]] * 4)),
    "fewer log-probs": encoded(answer(output_token_logprobs=[[-0.5, 7, None]])),
    "a log-prob above 0": encoded(answer(output_token_logprobs=[[0.5, token, None] for token in (7, 8, 9, 10)])),
    "a log-prob that is no number": encoded(answer()).replace(b"-0.5", b"NaN"),
    "no log-probs": encoded(answer(output_token_logprobs=None)),
    "spans that begin late": encoded(answer(weight_versions=[{"version": "0", "start": 1, "end": 4}])),
    "spans out of order": encoded(
        answer(weight_versions=[{"version": "0", "start": at, "end": 4} for at in (0, 3, 2)])
    ),
    "a span behind the end": encoded(
        answer(weight_versions=[{"version": "0", "start": at, "end": 9} for at in (0, 7)])
    ),
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_an_answer_that_cannot_be_used_is_told_with_replica_and_sample(
    replica: Callable[..., Any], text: bytes
) -> None:
    server = replica(lambda path: (200, text))
    with pytest.raises(WorkerError) as error:
        sampled(server.door)
    assert str(error.value).startswith("replica 0 (sample 1 of prompt 3) returned an unusable sample: ")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        _nested := lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "output_ids",
                        "meta_info",
                        "finish_reason",
                        "type",
                        "weight_version",
                        "output_token_logprobs",
                        "weight_versions",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
    )
)
def test_whatever_is_answered_is_a_sample_or_an_error_of_ours(told: Any) -> None:
    try:
        read = read_answer("it", json.dumps(told).encode(), REQUEST)
    except WorkerError:
        return
    assert len(read.output_ids) == len(read.logprobs)


@given(st.binary(max_size=200))
def test_whatever_bytes_are_answered_are_an_error_of_ours(text: bytes) -> None:
    with pytest.raises(WorkerError):
        read_answer("it", text, REQUEST)


def test_an_answer_with_status_500_is_told_in_the_servers_words(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (500, b'{"error": "out\n of memory"}'))
    with pytest.raises(WorkerError) as error:
        sampled(server.door)
    told = "replica 0 answers /generate (sample 1 of prompt 3) with status 500"
    assert str(error.value) == f'{told}\n    {{"error": "out of memory"}}'
    assert len(server.asked) == 1  # it is not asked again


@pytest.mark.parametrize("version", ["1", "-1", "default", INCOMPLETE, ""])
def test_another_version_is_told_with_the_one_that_was_expected(replica: Callable[..., Any], version: str) -> None:
    server = replica(lambda path: (200, encoded(answer(weight_version=version, weight_versions=None))))
    with pytest.raises(WorkerError) as error:
        sampled(server.door)
    assert f"replica 0 sampled with version {version} of the weights; 0 was expected" in str(error.value)


def test_spans_may_rise_while_the_expected_version_does_and_never_fall(replica: Callable[..., Any]) -> None:
    def spans(*versions: int) -> bytes:
        return encoded(
            answer(weight_versions=[{"version": str(v), "start": i, "end": 4} for i, v in enumerate(versions)])
        )

    told = {"text": spans(4, 5)}

    def while_updated(path: str) -> tuple[int, bytes]:
        models[0]._version = 5  # as `take` does in another thread
        return 200, told["text"]

    server = replica(while_updated)
    models = [SglangModel([server.door], Tokens(), version=4, limit_s=20.0)]
    assert gather(models[0], [REQUEST])[0].versions == ((0, 4), (1, 5))
    for wrong in ((5, 4), (3, 4), (4, 6)):
        models[0]._version, told["text"] = 4, spans(*wrong)
        with pytest.raises(WorkerError, match="of the weights; 4 to 5 was expected"):
            gather(models[0], [REQUEST])
    models[0].close()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{", b"\x00\xff garbage\r\n\r\n"])
def test_a_server_that_breaks_off_is_told_and_not_asked_again(replica: Callable[..., Any], sent: bytes) -> None:
    server = replica(lambda path: (0, sent))
    with pytest.raises(WorkerError, match="replica 0 broke the connection") as error:
        sampled(server.door)
    assert "its request was sample 1 of prompt 3" in str(error.value)
    assert len(server.asked) == 1


def test_a_server_that_does_not_answer_is_told_in_time(replica: Callable[..., Any]) -> None:
    def wait(path: str) -> tuple[int, bytes]:
        time.sleep(3)
        return 200, encoded(answer())

    server, started = replica(wait), time.monotonic()
    with pytest.raises(WorkerError, match="replica 0 did not answer within 0 s"):
        sampled(server.door, limit_s=0.3)
    with pytest.raises(WorkerError, match="replica 0 did not answer /pause_generation within 0 s"):
        SglangModel([server.door], Tokens(), limit_s=0.3).pause()
    assert time.monotonic() - started < 3


def test_a_server_that_is_not_there_is_tried_again_and_then_told(
    replica: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_model, "FIRST_PAUSE_S", 0.01)
    server = replica(lambda path: (200, encoded(answer())))
    server.shutdown()
    server.server_close()
    with pytest.raises(WorkerError, match="replica 0 cannot be reached"):
        sampled(server.door)


def test_a_server_that_comes_late_is_reached(replica: Callable[..., Any]) -> None:
    first = replica(lambda path: (200, encoded(answer())))
    first.shutdown()
    first.server_close()
    late: list[Any] = []

    def come() -> None:
        server: Any = ThreadingHTTPServer(("127.0.0.1", first.server_port), Handler)
        server.answers, server.asked = first.answers, []
        late.append(server)
        server.serve_forever(0.02)

    thread = threading.Timer(0.3, come)
    thread.start()
    try:
        assert sampled(first.door)[0].tokens == (7, 8, 9, 10)
    finally:
        thread.join(0.0)
        late[0].shutdown()
        late[0].server_close()


def test_one_bad_sample_does_not_spoil_the_others(replica: Callable[..., Any]) -> None:
    times = iter(range(100))
    server = replica(lambda path: (500, b"") if next(times) == 1 else (200, encoded(answer())))
    model = SglangModel([server.door], Tokens(), limit_s=20.0)

    async def each() -> list[Any]:
        asked = [SampleRequest((5,), 0, sample, 4, 1.0, Key()) for sample in range(5)]
        return await asyncio.gather(*(model.sample(one) for one in asked), return_exceptions=True)

    done = asyncio.run(each())
    assert sorted(type(one).__name__ for one in done) == ["Completion"] * 4 + ["WorkerError"]
    assert model._router.under_way == [0]
    model.close()


def test_prompts_are_spread_over_replicas_and_samples_of_one_stay_together(replica: Callable[..., Any]) -> None:
    servers = [replica(lambda path: (200, encoded(answer()))) for _ in range(3)]
    asked = tuple(
        SampleRequest((5, prompt), prompt, sample, 4, 1.0, Key()) for prompt in range(9) for sample in range(4)
    )
    assert len(sampled(*(server.door for server in servers), requests=asked)) == 36
    prompts = [sorted({body["input_ids"][1] for _, body, _ in server.asked}) for server in servers]
    assert [len(each) for each in prompts] == [3, 3, 3]
    assert sorted(sum(prompts, start=list[int]())) == list(range(9))


def test_what_the_engine_does_not_offer_is_refused() -> None:
    model = SglangModel([], Tokens())
    assert model.verbs == {"sample", "weights"}
    for call in (model.weights, lambda: model.step([], Optimizer()), lambda: model.token_stats(None, ())):  # type: ignore[arg-type]
        with pytest.raises(LawError, match=r"the engine `sglang` .*: it supports sample and load"):
            call()
    model.close()


def test_a_refused_update_names_the_call_and_the_server_goes_on(replica: Callable[..., Any], tmp_path: Path) -> None:
    import torch

    refusing = "/update_weights_from_disk"
    server = replica(lambda path: (400, b'{"message": "no such folder"}') if path == refusing else (200, b"{}"))
    with pytest.raises(WorkerError) as error:
        WeightUpdates([server.door], scratch=tmp_path, limit_s=20.0).send([("w", torch.ones(2, 2))], 7)
    assert str(error.value) == f'replica 0 answers {refusing} with status 400\n    {{"message": "no such folder"}}'
    paths = [path for path, _, _ in server.asked]
    assert paths[-1] == "/continue_generation"
    stamps = [body["new_version"] for path, body, _ in server.asked if path == "/update_weight_version"]
    assert stamps == [INCOMPLETE]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_comes_to_rest_is_told_in_time(replica: Callable[..., Any], tmp_path: Path) -> None:
    server = replica(lambda path: (400, b"busy") if path == "/flush_cache" else (200, b"{}"))
    with pytest.raises(WorkerError, match=r"replica 0 is not idle after 0 s\n  hint: hold='retract' does not wait"):
        WeightUpdates([server.door], scratch=tmp_path, limit_s=0.3).send([], 7)


def test_an_update_that_cannot_be_written_leaves_the_server_alone(replica: Callable[..., Any], tmp_path: Path) -> None:
    import torch

    server = replica(lambda path: (200, b"{}"))
    (tmp_path / "file").touch()
    with pytest.raises(WorkerError, match="weights cannot be written for an update"):
        WeightUpdates([server.door], scratch=tmp_path / "file", limit_s=20.0).send([("w", torch.ones(2))], 7)
    assert server.asked == []
    with pytest.raises(WorkerError, match="needs a scratch folder"):
        WeightUpdates([server.door]).send([], 7)


def test_a_group_that_a_server_refuses_ends_at_once(replica: Callable[..., Any]) -> None:
    import torch

    server = replica(lambda path: (400, b"no group") if path == "/init_weights_update_group" else (200, b"{}"))
    started = time.monotonic()
    with pytest.raises(WorkerError, match="replica 0 answers /init_weights_update_group with status 400"):
        WeightUpdates([server.door], by="group", limit_s=10.0).send([("w", torch.ones(2))], 7)
    assert time.monotonic() - started < 8


def test_the_first_sample_after_a_sleep_takes_the_memory_of_the_cache(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, encoded(answer()) if path == "/generate" else b"{}"))
    model = SglangModel([server.door], Tokens(), limit_s=20.0)
    model.sleep()
    model.wake()
    before = len(server.asked)
    gather(model, [REQUEST, REQUEST])
    asked = [(path, body.get("tags")) for path, body, _ in server.asked]
    release, resume = "/release_memory_occupation", "/resume_memory_occupation"
    assert asked[:before] == [("/flush_cache", None), (release, ["kv_cache", "weights"]), (resume, ["weights"])]
    assert asked[before:] == [(resume, ["kv_cache"]), ("/generate", None), ("/generate", None)]


def test_the_certificate_of_a_server_that_has_one_is_looked_at() -> None:
    plain, own = (ServerAddress(url, "r", SGLANG.newest) for url in ("http://127.0.0.1:1", "https://gpu-1:1"))
    checked = certificates([plain, own])
    assert certificates([plain]) is False
    assert isinstance(checked, ssl.SSLContext)
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_weights_that_nobody_will_send_are_stamped_when_their_server_is_attached(replica: Callable[..., Any]) -> None:
    told = {"version": SGLANG.newest, "device": "cpu"}
    server = replica(lambda path: (200, encoded(told)))
    for stamp in (False, True):
        Sglang().attach(server.door.url, admin_key="a", stamp=stamp)
    stamps = [body["new_version"] for path, body, _ in server.asked if path == "/update_weight_version"]
    assert stamps == ["0"]


def test_a_server_that_is_too_old_is_not_attached_to(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, encoded({"version": "0.4.1", "device": "cpu"})))
    with pytest.raises(WorkerError, match=r"SGLang 0\.4\.1 is too old"):
        Sglang().attach(server.door.url)
    with pytest.raises(WorkerError, match="cannot be reached"):
        Sglang().attach("http://127.0.0.1:9", limit_s=2.0)


@pytest.mark.parametrize("text", [b"{", b"1", b"\xff"])
def test_a_control_call_that_is_answered_with_no_json_is_told(replica: Callable[..., Any], text: bytes) -> None:
    server = replica(lambda path: (200, text))
    with (
        ServerControl(server.door, 5.0) as control,
        pytest.raises(WorkerError, match="answers /model_info with something other than JSON"),
    ):
        control.version()
