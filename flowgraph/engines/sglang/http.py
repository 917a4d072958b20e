"""The question that SGLang's `/generate` takes for one sample; its answers are read by `sample_answer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowgraph.language.handle import SampleRequest

UNCHANGED: dict[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings under which a server samples from the model's own distribution; no setting is left to its defaults."""


def seed(request: SampleRequest) -> int:
    """Return the seed of a sample's own random numbers, of 63 bits as servers take it."""
    return request.key.bits(request.prompt, request.sample)[0] >> 1


def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
    """Return the body of `/generate` for one sample: token ids in and out.

    The server samples by `sampling_seed` only if its kernels do not depend on the batch.
    """
    return {
        "input_ids": list(request.context),
        "return_logprob": True,
        "logprob_start_len": -1,
        "sampling_params": {
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "sampling_seed": seed(request),
            **UNCHANGED,
        },
    }
