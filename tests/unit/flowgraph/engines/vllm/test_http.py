"""What is said to vLLM servers, and those that answer with errors, nonsense or not at all: each is told, none believed.

The server here is a real one over HTTP that gives answers of vLLM 0.32's form; `tests/parity/test_served.py` has vLLM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.engines.servers import remote_model
from flowgraph.engines.servers.server_engine import ServerSettings
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.vllm import VLLM
from flowgraph.engines.vllm.http import VllmControl, question, read_sample
from flowgraph.engines.vllm.server import Vllm, VllmModel, VllmUpdates, token_bytes
from flowgraph.engines.weight_sync.weight_updates import INCOMPLETE
from flowgraph.errors import LawError, WorkerError
from flowgraph.language import Key
from flowgraph.language.handle import Optimizer, SampleRequest, Stopping, Truncation
from tests.unit.flowgraph.engines.servers.replicas import Tokens, drawn, encoded, replicas

REQUEST = SampleRequest((5, 6), 3, 1, 4, 0.7, Key(1, 2, "g"))
DONE = {"results": [{}]}


def answer(ids: tuple[int, ...] = (7, 8, 9, 10), **told: Any) -> dict[str, Any]:
    """Return a whole answer to a sample, as vLLM gives it."""
    choice = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": list(ids),
        "weight_versions": [{"version": "0", "start": 0, "end": len(ids)}],
        "logprobs": {"content": [{"token_id": token, "logprob": -0.5, "rank": 1} for token in ids]},
    }
    return {"request_id": "generate-tokens-1", "output_mode": "tokens", "choices": [choice | told]}


@pytest.fixture
def replica() -> Iterator[Callable[..., Any]]:
    yield from replicas(VLLM.newest, key="k", admin_key="a")


def agreeable(path: str) -> tuple[int, bytes]:
    """Answer every control call as a server does that can do all."""
    if path.startswith("/reset_prefix_cache"):
        return 200, b'{"success": true}'
    return 200, encoded({"results": [{"checksums": {}}]}) if path == "/collective_rpc" else b"{}"


def sampled(*doors: ServerAddress, requests: tuple[SampleRequest, ...] = (REQUEST,), **settings: Any) -> list[Any]:
    """Draw samples from servers."""
    return drawn(VllmModel, *doors, requests=requests, **settings)


def test_a_question_holds_token_ids_and_leaves_no_setting_to_the_server(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, encoded(answer())))
    (done,) = sampled(server.door)
    assert done.tokens == (7, 8, 9, 10)
    assert (done.logprobs, done.finished, done.versions) == ((-0.5,) * 4, False, ((0, 0),))
    ((path, body, headers),) = server.asked
    assert (path, headers["Authorization"]) == ("/inference/v1/generate", "Bearer k")
    assert body["token_ids"] == [5, 6]
    settings = body["sampling_params"]
    assert 0 <= settings.pop("seed") < 2**63
    assert settings == {
        "temperature": 0.7,
        "max_tokens": 4,
        "stop_token_ids": [2],
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
        "n": 1,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def test_settings_are_sent_as_they_are_meant_and_others_are_refused(replica: Callable[..., Any]) -> None:
    settings = {"truncation": Truncation(top_k=7, top_p=0.9), "repetition_penalty": 1.1}
    request = replace(REQUEST, **settings, stopping=Stopping(ids=(9,), ignore_eos=True))
    server = replica(lambda path: (200, encoded(answer())))
    (done,) = sampled(server.door, requests=(request,))
    assert (done.tokens, done.logprobs, done.finished) == ((7, 8, 9), (-0.5,) * 3, True)
    ((_, body, _),) = server.asked
    sent = body["sampling_params"]
    assert (sent["top_k"], sent["top_p"], sent["repetition_penalty"]) == (7, 0.9, 1.1)
    assert sent["stop_token_ids"] == [9]
    greedy = question(replace(request, temperature=0.0), [])["sampling_params"]
    assert (greedy["top_k"], greedy["top_p"], greedy["repetition_penalty"]) == (-1, 1.0, 1.1)
    with pytest.raises(WorkerError, match=r"`vllm` does not sample with min_p=0\.1 with top_p=0\.9, as `local` does"):
        question(replace(REQUEST, truncation=Truncation(top_p=0.9, min_p=0.1)), [])


def test_a_temperature_that_vllm_would_replace_is_refused_before_it_is_asked() -> None:
    for temperature in (0.0, 0.01, 1.0):
        assert (
            question(SampleRequest((5,), 0, 0, 4, temperature, Key()), [])["sampling_params"]["temperature"]
            == temperature
        )
    with pytest.raises(WorkerError, match=r"at temperature 0\.01 or more, not at 0\.005"):
        question(SampleRequest((5,), 0, 0, 4, 0.005, Key()), [])


WRONG = {
    "an empty answer": b"",
    "nonsense": b"<html>502</html>",
    "a list": b"[]",
    "half of an answer": encoded(answer())[:60],
    "no choice": encoded({"choices": []}),
    "two choices": encoded({"choices": answer()["choices"] * 2}),
    "no tokens": encoded(answer((), weight_versions=[])),
    "too many tokens": encoded(answer((1, 2, 3, 4, 5))),
    "cut off": encoded(answer((7,))),
    "aborted": encoded(answer((), finish_reason="abort", weight_versions=[])),
    "a negative token": encoded(answer((-1, 8, 9, 10))),
    "log-probs of other tokens": encoded(answer(logprobs={"content": [{"token_id": 1, "logprob": -0.5}] * 4})),
    "fewer log-probs": encoded(answer(logprobs={"content": [{"token_id": 7, "logprob": -0.5}]})),
    "a log-prob above 0": encoded(answer()).replace(b"-0.5", b"0.5"),
    "a log-prob that is no number": encoded(answer()).replace(b"-0.5", b"NaN"),
    "no log-probs": encoded(answer(logprobs=None)),
    "no versions": encoded(answer(weight_versions=None)),
    "spans that begin late": encoded(answer(weight_versions=[{"version": "0", "start": 1, "end": 4}])),
    "a span without a version": encoded(answer(weight_versions=[{"start": 0, "end": 4}])),
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_an_answer_that_cannot_be_used_is_told_with_replica_and_sample(
    replica: Callable[..., Any], text: bytes
) -> None:
    server = replica(lambda path: (200, text))
    with pytest.raises(WorkerError) as error:
        sampled(server.door)
    assert str(error.value).startswith("replica 0 (sample 1 of prompt 3) returned an unusable sample: ")


@given(st.binary(max_size=200))
def test_whatever_bytes_are_answered_are_an_error_of_ours(text: bytes) -> None:
    with pytest.raises(WorkerError):
        read_sample("it", text, REQUEST)


NAMES = ["choices", "token_ids", "logprobs", "content", "token_id", "logprob", "finish_reason", "weight_versions"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    )
)
def test_whatever_is_answered_is_a_sample_or_an_error_of_ours(told: Any) -> None:
    try:
        read = read_sample("it", json.dumps(told).encode(), REQUEST)
    except WorkerError:
        return
    assert len(read.output_ids) == len(read.logprobs)


@pytest.mark.parametrize("version", ["1", "-1", "default", INCOMPLETE, ""])
def test_another_version_is_told_with_the_one_that_was_expected(replica: Callable[..., Any], version: str) -> None:
    spans = [{"version": version, "start": 0, "end": 4}]
    server = replica(lambda path: (200, encoded(answer(weight_versions=spans))))
    with pytest.raises(WorkerError, match=f"sampled with version {version} of the weights; 0 was expected"):
        sampled(server.door)


def test_an_answer_with_status_500_is_told_in_the_servers_words(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (500, b'{"error": "out\n of memory"}'))
    with pytest.raises(WorkerError) as error:
        sampled(server.door)
    told = "replica 0 answers /inference/v1/generate (sample 1 of prompt 3) with status 500"
    assert str(error.value) == f'{told}\n    {{"error": "out of memory"}}'
    assert len(server.asked) == 1  # it is not asked again


def test_a_server_that_does_not_answer_is_told_in_time(replica: Callable[..., Any]) -> None:
    def wait(path: str) -> tuple[int, bytes]:
        time.sleep(3)
        return 200, encoded(answer())

    server, started = replica(wait), time.monotonic()
    with pytest.raises(WorkerError, match="replica 0 did not answer within 0 s"):
        sampled(server.door, limit_s=0.3)
    with pytest.raises(WorkerError, match=r"replica 0 did not answer /pause\?mode=keep within 0 s"):
        VllmModel([server.door], Tokens(), limit_s=0.3).pause()
    assert time.monotonic() - started < 3


def test_a_server_that_is_not_there_is_tried_again_and_then_told(
    replica: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_model, "FIRST_PAUSE_S", 0.01)
    server = replica(lambda path: (200, b""))
    server.shutdown()
    server.server_close()
    with pytest.raises(WorkerError, match="replica 0 cannot be reached"):
        sampled(server.door)


def test_an_update_holds_sends_checks_stamps_and_lets_go(replica: Callable[..., Any], tmp_path: Path) -> None:
    import torch

    server = replica(agreeable)
    with pytest.raises(WorkerError, match="uses other names for its weights"):  # it tells no checksum of `w`
        door = replace(server.door, precision="float32")
        VllmUpdates([door], scratch=tmp_path, hold="retract").send([("w", torch.ones(2))], 7)
    told = [(path, body.get("method") or body.get("new_version")) for path, body, _ in server.asked]
    assert told == [
        ("/pause?mode=keep", None),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/reset_prefix_cache", None),
        ("/collective_rpc", "flowgraph_update_weights_from_disk"),
        ("/collective_rpc", "flowgraph_weights_checker"),
        ("/update_weight_version", INCOMPLETE),
        ("/resume", None),
    ]
    assert {headers["Authorization"] for _, _, headers in server.asked} == {"Bearer a"}
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_fails_is_told_in_its_words_and_the_server_goes_on(
    replica: Callable[..., Any], tmp_path: Path
) -> None:
    import torch

    failing = encoded({"results": [{}, {"failed": "FileNotFoundError: no weights in\n /x"}]})
    server = replica(lambda path: (200, failing) if path == "/collective_rpc" else agreeable(path))
    with pytest.raises(WorkerError) as error:
        VllmUpdates([server.door], scratch=tmp_path).send([("w", torch.ones(2))], 7)
    told = "replica 0 cannot do /update_weights_from_disk"
    assert str(error.value) == f"{told}\n    FileNotFoundError: no weights in /x"
    assert server.asked[-1][0] == "/resume"


@pytest.mark.parametrize("results", [None, [], [None], "done", [1]], ids=str)
def test_a_server_whose_workers_were_not_taught_is_told(replica: Callable[..., Any], results: Any) -> None:
    server = replica(lambda path: (200, encoded({"results": results})))
    with VllmControl(server.door, 5.0) as control, pytest.raises(WorkerError, match="start this server with flowgraph"):
        control.post("/begin_weight_update")


def test_a_server_that_never_comes_to_rest_is_told_in_time(replica: Callable[..., Any], tmp_path: Path) -> None:
    server = replica(lambda path: (200, b'{"success": false}'))
    with pytest.raises(WorkerError, match=r"replica 0 is not idle after 0 s\n  hint: hold='retract' does not wait"):
        VllmUpdates([server.door], scratch=tmp_path, limit_s=0.3).send([], 7)


def test_weights_do_not_go_through_memory_to_a_gpu(replica: Callable[..., Any]) -> None:
    server = replica(agreeable)
    door = ServerAddress(server.door.url, "replica 0", VLLM.newest, device="cuda", key="k", admin_key="a")
    with pytest.raises(WorkerError, match=r"cannot receive weights through memory\n  hint: update by group"):
        VllmUpdates([door], by="memory").send([], 7)


def test_sleep_and_wake_are_asked_of_servers_that_sleep_only(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, b"{}"))
    awake = VllmModel([server.door], Tokens(), limit_s=5.0)
    awake.sleep()
    assert server.asked == []
    for keeps, level in ((False, 2), (True, 1)):
        door = ServerAddress(server.door.url, "r", VLLM.newest, sleeps=True, keeps=keeps, admin_key="a")
        sleeping, before = VllmModel([door], Tokens(), limit_s=5.0), len(server.asked)
        sleeping.sleep()
        sleeping.sleep(("kv_cache",))  # which sleeps
        sleeping.wake()
        sleeping.wake(("weights", "kv_cache"))
        assert [path for path, _, _ in server.asked[before:]] == [
            f"/sleep?level={level}&mode=wait",
            "/wake_up?tags=weights",
            "/wake_up?tags=kv_cache",
        ]


def test_a_server_that_is_too_old_is_not_attached_to(replica: Callable[..., Any]) -> None:
    server = replica(lambda path: (200, b'{"version": "0.31.0+cpu"}' if path == "/version" else encoded(DONE)))
    with pytest.raises(WorkerError, match=r"vLLM 0\.31\.0 is too old: 0\.32\.0 is the oldest that is known"):
        Vllm().attach(server.door.url)
    with pytest.raises(WorkerError, match="cannot be reached"):
        Vllm().attach("http://127.0.0.1:9", limit_s=2.0)


def test_what_the_engine_does_not_offer_is_refused() -> None:
    model = VllmModel([], Tokens())
    assert model.verbs == {"sample", "weights"}
    for call in (model.weights, lambda: model.step([], Optimizer()), lambda: model.token_stats(None, ())):  # type: ignore[arg-type]
        with pytest.raises(LawError, match=r"the engine `vllm` .*: it supports sample and load"):
            call()
    model.close()


CONFIG = {
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 32,
    "hidden_size": 64,
    "num_key_value_heads": 2,
}


def test_a_command_line_on_a_cpu_bounds_the_cache_and_on_a_gpu_shares_the_device() -> None:
    def told(device: Any, **settings: Any) -> dict[str, str]:
        line = Vllm().arguments(Path("model"), ServerSettings(**settings), device, CONFIG, 0)
        return dict(pairwise(line))

    assert token_bytes(CONFIG, "bfloat16") == 2 * 2 * 2 * 32 * 2
    cpu = told("cpu", max_tokens_cached=100)
    assert cpu["--kv-cache-memory-bytes"] == str((4 + 1) * 32 * token_bytes(CONFIG, "float32"))
    assert (cpu["--max-model-len"], cpu["--logprobs-mode"]) == ("64", "processed_logprobs")
    assert "--enforce-eager" in cpu
    gpu = told("cuda", cache_share=0.5, max_tokens_cached=100, tensor=2, sleeps=True, precision="bfloat16")
    assert (gpu["--gpu-memory-utilization"], gpu["--num-gpu-blocks-override"]) == ("0.5", "4")
    assert (gpu["--tensor-parallel-size"], gpu["--dtype"]) == ("2", "bfloat16")
    assert "--enable-sleep-mode" in gpu
    assert "--enforce-eager" not in gpu


def test_a_servers_environment_takes_over_no_rank_key_or_path_of_ours() -> None:
    ours = {"RANK": "1", "VLLM_API_KEY": "secret", "PYTHONPATH": "/ours", "HOME": "/root"}
    given = Vllm().environment(ours, ServerSettings(threads=3), "cpu", (), "127.0.0.1")
    assert not {"RANK", "VLLM_API_KEY", "PYTHONPATH"} & given.keys()
    assert (given["HOME"], given["OMP_NUM_THREADS"], given["VLLM_TARGET_DEVICE"]) == ("/root", "3", "cpu")
    gpu = Vllm().environment(ours, ServerSettings(repeatable=True), "cuda", ("2", "3"), "10.0.0.1")
    assert (gpu["CUDA_VISIBLE_DEVICES"], gpu["VLLM_BATCH_INVARIANT"]) == ("2,3", "1")
    assert "GLOO_SOCKET_IFNAME" not in gpu
