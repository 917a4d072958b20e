"""Sampling: prompts in, responses out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.language import Key, Measure
from flowgraph.language.handle import Completion, SampleRequest, gather
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
from nodes.values import Columns, Finished, LanguageModel, LogProbs, Prompts, Rollout, Temperature, Text, Versions

if TYPE_CHECKING:
    from torch import Tensor, dtype

METRICS = (
    Metric("response_length", "tokens", headline=True),
    Metric("finished", about="share of responses that ended before `max_tokens`"),
    Metric(
        "entropy",
        "nats",
        headline=True,
        about="mean of -log p over the sampled tokens, an estimate of the policy's entropy",
    ),
)


@node(kind="generate", metrics=METRICS)
def generate(
    policy: LanguageModel,
    prompts: Prompts,
    *,
    n: Annotated[int, Field(ge=1)] = 1,
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    key: Key = Key(),
) -> Rollout:
    """Sample `n` responses to each prompt; at temperature 0 the most likely token is taken.

    Returns B = prompts × n rows, with the samples of a prompt next to each other. The key, the prompt's row in the data
    set, the sample and the position determine each random number, so a response does not depend on its batch.
    """
    encode = policy.handle.tokenizer.encode
    contexts = [encode(messages) for messages in prompts.columns.data.column("prompt").to_pylist()]
    requests = [
        SampleRequest(context, group, sample, max_tokens, temperature, key)
        for context, group in zip(contexts, prompts.group.data.tolist(), strict=True)
        for sample in range(n)
    ]
    return _rollout(policy, prompts, requests, gather(policy.handle, requests), temperature)


def _rollout(
    policy: LanguageModel,
    prompts: Prompts,
    requests: Sequence[SampleRequest],
    completions: Sequence[Completion],
    temperature: float,
) -> Rollout:
    import pyarrow as pa
    import torch

    count = len(prompts.group.data)
    prompt_of_row = torch.arange(count).repeat_interleave(len(completions) // max(1, count))
    lengths = torch.tensor([len(completion.tokens) for completion in completions], dtype=torch.int64)
    tokens = pad([completion.tokens for completion in completions], torch.int64)
    logprobs = pad([completion.logprobs for completion in completions], torch.float32)
    mask = (torch.arange(tokens.shape[1])[None] < lengths[:, None]).float()
    finished = torch.tensor([completion.finished for completion in completions], dtype=torch.bool)
    texts = [policy.handle.tokenizer.decode(completion.tokens) for completion in completions]
    return Rollout(
        group=Group(torch.tensor([request.prompt for request in requests], dtype=torch.int64)),
        sample=Sample(torch.tensor([request.sample for request in requests], dtype=torch.int64)),
        trajectory=Trajectory(torch.zeros(len(completions), dtype=torch.int64)),
        context=Context(pa.array([request.context for request in requests], pa.list_(pa.int32()))),
        tokens=Tokens(tokens),
        mask=Mask(mask),
        lengths=Lengths(lengths),
        logprobs=LogProbs(logprobs),
        versions=Versions(pad([_token_versions(completion) for completion in completions], torch.int64)),
        finished=Finished(finished),
        text=Text(pa.array(texts, pa.string())),
        columns=Columns(prompts.columns.data.take(prompt_of_row.numpy())),
        temperature=Temperature(temperature),
    ).measured(
        Measure("response_length", float(lengths.sum()), len(completions)),
        Measure("finished", float(finished.sum()), len(completions)),
        Measure("entropy", -float(logprobs.sum()), float(lengths.sum()) if temperature else 0.0),
    )


def _token_versions(completion: Completion) -> list[int]:
    """Return the version of the policy that sampled each token, from the completion's spans.

    >>> _token_versions(Completion((5, 6, 7), (0.0, 0.0, 0.0), True, ((0, 3), (2, 4))))
    [3, 3, 4]
    """
    starts = [start for start, _ in completion.versions[1:]] + [len(completion.tokens)]
    spans = zip(completion.versions, starts, strict=True)
    return [version for (start, version), stop in spans for _ in range(start, stop)]


def pad(lists: Sequence[Sequence[float]], kind: dtype) -> Tensor:
    """Pad lists on the right with zeros to the longest: [B, T]."""
    import torch

    lengths = torch.tensor([len(numbers) for numbers in lists], dtype=torch.int64)
    padded = torch.zeros(len(lists), max(map(len, lists), default=0), dtype=kind)
    inside = torch.arange(padded.shape[1])[None] < lengths[:, None]
    padded[inside] = torch.tensor([number for numbers in lists for number in numbers], dtype=kind)
    return padded
