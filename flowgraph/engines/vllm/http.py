"""What is said to a vLLM server over HTTP: its control calls, and the form of a sample's question and answer.

`VllmControl` answers to the calls that updates make of SGLang's servers (`weight_updates`): those of weights go to the
workers, which `engines/vllm_worker.py` taught them; those of generation have names of vLLM's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from flowgraph.engines.sglang.http import SHOWN, SampleAnswer, ServerControl, read_answer
from flowgraph.errors import WorkerError
from flowgraph.language.handle import SampleRequest

GENERATE = "/inference/v1/generate"
COLDEST = 0.01  # vLLM samples no colder, except greedily

# Source: the routers `rl/online` and `serve/dev` of vLLM 0.32.
_CALLS = {"/continue_generation": "/resume", "/abort_request": "/abort_requests"}
_PAUSES = {
    "in_place": ("/pause?mode=keep",),
    "retract": ("/pause?mode=keep", "/reset_prefix_cache?reset_running_requests=true"),
}


class VllmControl(ServerControl):
    """The control calls of one vLLM server, made one at a time; each has `limit_s` seconds.

    Raises WorkerError, which names the server and the call, as `ServerControl` does, and where a worker failed.
    """

    def __enter__(self) -> VllmControl:
        return self

    def post(self, path: str, **told: Any) -> dict[str, Any]:
        """Make one call and give its answer; what is said of weights is said to every worker of the server."""
        if path == "/pause_generation":
            return self.each(*_PAUSES[told["mode"]])
        if path in _CALLS:
            return self.each(_CALLS[path])
        return self._workers(path, told)

    def each(self, *paths: str, **told: Any) -> dict[str, Any]:
        """Call vLLM's own paths, in order, and give the last answer."""
        answer = dict[str, Any]()
        for path in paths:
            answer = self._object(path, self._send("POST", path, told, {}))
        return answer

    def flush(self) -> bool:
        """Empty the cache; say whether that was done, which a server does only while it works on nothing."""
        return self.each("/reset_prefix_cache").get("success") is True

    def version(self) -> str:
        """Give the version that the server stamps."""
        return str(self.get("/weight_info").get("weight_version"))

    def stamp(self, version: str) -> None:
        """Have the server stamp this version from now on; requests that run get a span of it."""
        self.each("/update_weight_version", new_version=version)

    def _workers(self, path: str, told: dict[str, Any]) -> dict[str, Any]:
        method = f"flowgraph_{path.removeprefix('/')}"
        asked = {"method": method, "kwargs": told, "timeout": self.limit_s}
        answer = self._object(path, self._send("POST", "/collective_rpc", asked, {}))
        results = answer.get("results")
        if not isinstance(results, list) or not results or not all(isinstance(each, dict) for each in results):
            what = f"{self.door.name} answers {path} with what is none of its workers'"
            raise WorkerError(what, notes=[str(answer)[:SHOWN]], hint="was it started by flowgraph?")
        failed = next((each["failed"] for each in results if "failed" in each), None)
        if failed is not None:
            raise WorkerError(f"{self.door.name} cannot do {path}", notes=[" ".join(str(failed).split())[:SHOWN]])
        return {**results[0], "ranks": results}


class _LogProb(BaseModel):
    token_id: int
    logprob: float


class _LogProbs(BaseModel):
    content: list[_LogProb]


class _Choice(BaseModel):
    finish_reason: str
    token_ids: list[int]
    logprobs: _LogProbs
    weight_versions: list[dict[str, Any]]  # none where no token was drawn


class _GenerateAnswer(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
    """Give the body of `/inference/v1/generate` for one sample: token ids in and out, no setting left to the server.

    Raises WorkerError for a temperature that vLLM would replace by another.
    """
    if 0 < request.temperature < COLDEST:
        raise WorkerError(f"vLLM samples greedily or at {COLDEST} at least, not at {request.temperature}")
    seed = request.key.bits(request.prompt, request.sample)[0] >> 1  # the server's seeds have 63 bits
    return {
        "token_ids": list(request.context),
        "sampling_params": {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "ignore_eos": True,  # `stop_token_ids` are all the ends there are
            "seed": seed,
            "logprobs": 0,  # of the token that was drawn, and of no others
            "detokenize": False,
            "n": 1,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
        },
    }


def read_sample(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
    """Read a sample's answer, and refuse one that is none, by the rules for SGLang's (`read_answer`).

    Raises WorkerError, which names the server and what is wrong.
    """
    try:
        told = _GenerateAnswer.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{name} answers a sample with what cannot be used: {place}: {first['msg']}"
        shown = " ".join(text[:SHOWN].decode(errors="replace").split())
        raise WorkerError(what, notes=[shown] if shown else []) from None
    return read_answer(name, json.dumps(_as_answer(told.choices[0])).encode(), request)


def _as_answer(choice: _Choice) -> dict[str, Any]:
    spans = choice.weight_versions
    told = {
        "finish_reason": {"type": choice.finish_reason},
        "output_token_logprobs": [[each.logprob, each.token_id, None] for each in choice.logprobs.content],
        "weight_version": spans[-1].get("version") if spans else "",
        "weight_versions": spans,
    }
    return {"output_ids": choice.token_ids, "meta_info": told}
