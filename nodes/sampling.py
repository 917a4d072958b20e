"""Sampling: prompts in, responses out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Key, Measure, Metric, node
from flowgraph.language.handle import Completion, SampleRequest, gather
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
from nodes.values import Columns, Finished, LanguageModel, LogProbs, Prompts, Rollout, Temperature, Text, Versions

if TYPE_CHECKING:
    from torch import Tensor, dtype

METRICS = (
    Metric("response_length", "tokens", headline=True),
    Metric("finished", about="share of responses that ended by themselves"),
    Metric("entropy", "nats", headline=True, about="mean of -log p over the tokens drawn, whose mean is the entropy"),
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
    """Draw `n` responses to each prompt; at temperature 0 the likeliest token is taken.

    Gives B = prompts × n rows, a prompt's samples side by side. Random numbers are named by the key, the prompt's row
    in the data set, the sample and the position, so a response does not depend on its batch.
    """
    encode = policy.handle.tokenizer.encode
    contexts = [encode(messages) for messages in prompts.columns.data.column("prompt").to_pylist()]
    requests = [
        SampleRequest(context, group, sample, max_tokens, temperature, key)
        for context, group in zip(contexts, prompts.group.data.tolist(), strict=True)
        for sample in range(n)
    ]
    done = gather(policy.handle, requests)
    return _rollout(policy, prompts, requests, done, temperature)


def _rollout(
    policy: LanguageModel,
    prompts: Prompts,
    requests: Sequence[SampleRequest],
    done: Sequence[Completion],
    temperature: float,
) -> Rollout:
    import pyarrow as pa
    import torch

    each_prompt = torch.arange(len(prompts.group.data)).repeat_interleave(len(done) // max(1, len(prompts.group.data)))
    lengths = torch.tensor([len(each.tokens) for each in done], dtype=torch.int64)
    tokens = pad([each.tokens for each in done], torch.int64)
    logprobs = pad([each.logprobs for each in done], torch.float32)
    mask = (torch.arange(tokens.shape[1])[None] < lengths[:, None]).float()
    finished = torch.tensor([each.finished for each in done], dtype=torch.bool)
    return Rollout(
        group=Group(torch.tensor([request.prompt for request in requests], dtype=torch.int64)),
        sample=Sample(torch.tensor([request.sample for request in requests], dtype=torch.int64)),
        trajectory=Trajectory(torch.zeros(len(done), dtype=torch.int64)),
        context=Context(pa.array([request.context for request in requests], pa.list_(pa.int32()))),
        tokens=Tokens(tokens),
        mask=Mask(mask),
        lengths=Lengths(lengths),
        logprobs=LogProbs(logprobs),
        versions=Versions(pad([_spread(each) for each in done], torch.int64)),
        finished=Finished(finished),
        text=Text(pa.array([policy.handle.tokenizer.decode(each.tokens) for each in done], pa.string())),
        columns=Columns(prompts.columns.data.take(each_prompt.numpy())),
        temperature=Temperature(temperature),
    ).measured(
        Measure("response_length", float(lengths.sum()), len(done)),
        Measure("finished", float(finished.sum()), len(done)),
        Measure("entropy", -float(logprobs.sum()), float(lengths.sum()) if temperature else 0.0),
    )


def _spread(completion: Completion) -> list[int]:
    """Give the version of each token from the spans.

    >>> _spread(Completion((5, 6, 7), (0.0, 0.0, 0.0), True, ((0, 3), (2, 4))))
    [3, 3, 4]
    """
    starts = [start for start, _ in completion.versions[1:]] + [len(completion.tokens)]
    spans = zip(completion.versions, starts, strict=True)
    return [version for (start, version), stop in spans for _ in range(start, stop)]


def pad(lists: Sequence[Sequence[float]], kind: dtype) -> Tensor:
    """Pad on the right with zeros: [B, T]."""
    import torch

    lengths = torch.tensor([len(each) for each in lists], dtype=torch.int64)
    padded = torch.zeros(len(lists), max(map(len, lists), default=0), dtype=kind)
    inside = torch.arange(padded.shape[1])[None] < lengths[:, None]
    padded[inside] = torch.tensor([one for each in lists for one in each], dtype=kind)
    return padded
