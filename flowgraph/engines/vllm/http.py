"""Control calls to a vLLM server over HTTP, and the format of a request for a sample and of its answer.

`VllmControl` accepts the paths of SGLang that weight updates use: calls about weights are sent to the workers, which
have methods for them from `vllm_worker`; calls about generation are translated to vLLM's paths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from flowgraph.engines.servers.sample_answer import (
    UNCHANGED,
    SampleAnswer,
    parse_answer,
    read_answer,
    refuse_other_distribution,
    sample_seed,
)
from flowgraph.engines.servers.server_control import SHOWN, ServerControl
from flowgraph.engines.vllm import ENGINE
from flowgraph.errors import WorkerError
from flowgraph.language.handle import COLDEST, SampleRequest

GENERATE = "/inference/v1/generate"

# Source: the routers `rl/online` and `serve/dev` of vLLM 0.32.
_CALLS = {"/continue_generation": "/resume", "/abort_request": "/abort_requests"}
_PAUSES = {
    "in_place": ("/pause?mode=keep",),
    "retract": ("/pause?mode=keep", "/reset_prefix_cache?reset_running_requests=true"),
}


class VllmControl(ServerControl):
    """A client for the control calls of one vLLM server, on the paths of SGLang.

    Calls raise WorkerError, which names the server and the path, as `ServerControl` does, and also if a worker failed.
    """

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send the control call that SGLang has at `path` to vLLM, and return the answer; {} if it is empty.

        Calls about weights go to every worker: the result is the first worker's answer, with the answers of all workers
        as "ranks". Raises WorkerError if the server or a worker cannot execute the call.
        """
        if path == "/pause_generation":
            return self.call(*_PAUSES[body["mode"]])
        return self.call(_CALLS[path]) if path in _CALLS else self._call_workers(path, body)

    def call(self, *paths: str, **body: Any) -> dict[str, Any]:
        """Send `body` as JSON to each of vLLM's `paths` in POST requests, in order, and return the last answer.

        Raises WorkerError as `ServerControl.post` does; later paths are then not called.
        """
        answer = dict[str, Any]()
        for path in paths:
            answer = self._object(path, self._send("POST", path, body))
        return answer

    def flush(self) -> bool:
        """Empty the server's prefix cache, and return whether it was emptied; False if the server is not idle.

        Raises WorkerError as `call` does.
        """
        return self.call("/reset_prefix_cache").get("success") is True

    def version(self) -> str:
        """Return the version of the weights that the server reports with samples, as text; "None" if it reports none.

        Raises WorkerError as `get` does.
        """
        return str(self.get("/weight_info").get("weight_version"))

    def stamp(self, version: str) -> None:
        """Set the version of the weights that the server reports with samples from now on.

        Running requests continue, and report this version for their remaining tokens. Raises WorkerError as `call`
        does.
        """
        self.call("/update_weight_version", new_version=version)

    def _call_workers(self, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
        method = f"flowgraph_{path.removeprefix('/')}"
        body = {"method": method, "kwargs": arguments, "timeout": self.limit_s}
        answer = self._object(path, self._send("POST", "/collective_rpc", body))
        results = answer.get("results")
        if not isinstance(results, list) or not results or not all(isinstance(result, dict) for result in results):
            what = f"{self.door.name} answers {path} with something other than its workers' results"
            raise WorkerError(what, notes=[str(answer)[:SHOWN]], hint="start this server with flowgraph")
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


def question(request: SampleRequest, ends: Sequence[int], vocabulary: int | None = None) -> dict[str, Any]:
    """Return the JSON body of a `/inference/v1/generate` request for one sample, with token ids as input and output.

    `ends` are the token ids that end the response; `vocabulary` is not used. Raises WorkerError for a temperature
    between 0 and 0.01, which vLLM would change, and for settings that vLLM applies differently from the engine `local`.
    """
    if 0 < request.temperature < COLDEST:
        raise WorkerError(f"vLLM samples greedily or at temperature {COLDEST} or more, not at {request.temperature}")
    refuse_other_distribution(request, ENGINE)
    return {
        "token_ids": list(request.context),
        "sampling_params": {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "ignore_eos": True,  # `stop_token_ids` are all the ends there are
            "seed": sample_seed(request),
            "logprobs": 0,  # of the sampled token, and of no others
            "detokenize": False,
            "n": 1,
            **UNCHANGED,
            **request.reshaped(),
        },
    }


def read_sample(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
    """Return the parsed and checked answer `text` of the vLLM server `name` to a request for a sample.

    Raises WorkerError, which names the server, if the answer has another form, or one of the faults that `read_answer`
    lists.
    """
    (choice,) = parse_answer(_GenerateAnswer, name, text).choices
    spans = choice.weight_versions
    meta_info = {
        "finish_reason": {"type": choice.finish_reason},
        "output_token_logprobs": [[prob.logprob, prob.token_id, None] for prob in choice.logprobs.content],
        "output_token_sampling_logprobs": [prob.logprob for prob in choice.logprobs.content],
        "weight_version": spans[-1].get("version") if spans else "",
        "weight_versions": spans,
    }
    return read_answer(name, json.dumps({"output_ids": choice.token_ids, "meta_info": meta_info}).encode(), request)
