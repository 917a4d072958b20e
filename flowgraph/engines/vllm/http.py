"""Control calls to a vLLM server over HTTP, and the form of a sample's question and answer.

`VllmControl` takes the calls that weight updates make of SGLang's servers: those about weights go to the workers, which
have methods for them from `vllm_worker`; those about generation have names of vLLM's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from flowgraph.engines.servers.sample_answer import UNCHANGED, SampleAnswer, parse_answer, read_answer, seed
from flowgraph.engines.servers.server_control import SHOWN, ServerControl
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

    Raises WorkerError, which names the server and the call, as `ServerControl` does, and if a worker failed.
    """

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Make one call and return its answer; a call about weights goes to every worker of the server."""
        if path == "/pause_generation":
            return self.call(*_PAUSES[body["mode"]])
        return self.call(_CALLS[path]) if path in _CALLS else self._call_workers(path, body)

    def call(self, *paths: str, **body: Any) -> dict[str, Any]:
        """Call vLLM's own paths, in order, and return the last answer."""
        answer = dict[str, Any]()
        for path in paths:
            answer = self._object(path, self._send("POST", path, body))
        return answer

    def flush(self) -> bool:
        """Empty the cache; return whether it was emptied, which a server does only while it is idle."""
        return self.call("/reset_prefix_cache").get("success") is True

    def version(self) -> str:
        """Return the version that the server stamps on samples."""
        return str(self.get("/weight_info").get("weight_version"))

    def stamp(self, version: str) -> None:
        """Have the server stamp this version from now on; running requests get a span of it."""
        self.call("/update_weight_version", new_version=version)

    def _call_workers(self, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
        method = f"flowgraph_{path.removeprefix('/')}"
        body = {"method": method, "kwargs": arguments, "timeout": self.limit_s}
        answer = self._object(path, self._send("POST", "/collective_rpc", body))
        results = answer.get("results")
        if not isinstance(results, list) or not results or not all(isinstance(result, dict) for result in results):
            what = f"{self.door.name} answers {path} with what is none of its workers'"
            raise WorkerError(what, notes=[str(answer)[:SHOWN]], hint="was it started by flowgraph?")
        failure = next((result["failed"] for result in results if "failed" in result), None)
        if failure is not None:
            raise WorkerError(f"{self.door.name} cannot do {path}", notes=[" ".join(str(failure).split())[:SHOWN]])
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
    weight_versions: list[dict[str, Any]]  # empty if no token was sampled


class _GenerateAnswer(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
    """Return the body of `/inference/v1/generate` for one sample: token ids in and out.

    Raises WorkerError for a temperature that vLLM would replace by another.
    """
    if 0 < request.temperature < COLDEST:
        raise WorkerError(f"vLLM samples greedily or at {COLDEST} at least, not at {request.temperature}")
    return {
        "token_ids": list(request.context),
        "sampling_params": {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "ignore_eos": True,  # `stop_token_ids` are all the ends there are
            "seed": seed(request),
            "logprobs": 0,  # of the sampled token, and of no others
            "detokenize": False,
            "n": 1,
            **UNCHANGED,
        },
    }


def read_sample(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
    """Read the answer to a request; raise WorkerError for one that `read_answer` would refuse of SGLang."""
    (choice,) = parse_answer(_GenerateAnswer, name, text).choices
    spans = choice.weight_versions
    meta_info = {
        "finish_reason": {"type": choice.finish_reason},
        "output_token_logprobs": [[prob.logprob, prob.token_id, None] for prob in choice.logprobs.content],
        "weight_version": spans[-1].get("version") if spans else "",
        "weight_versions": spans,
    }
    return read_answer(name, json.dumps({"output_ids": choice.token_ids, "meta_info": meta_info}).encode(), request)
