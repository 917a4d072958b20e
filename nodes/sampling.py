"""Sampling: prompts in, responses out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from flowgraph import Metric, node
from flowgraph.language import Key, Measure, NodeName
from flowgraph.language.handle import (
    COLDEST,
    WHOLE_VOCABULARY,
    Completion,
    SampleRequest,
    Stopping,
    Truncation,
    gather,
)
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory, Versions
from nodes.values import Columns, Finished, LanguageModel, LogProbs, Prompts, Rollout, Temperature, Text

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


LARGEST_TOKEN = 2**31 - 1  # token ids are stored as int32
TopK = Annotated[int, Field(ge=0)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(gt=0, le=2)]


def _not_too_cold(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        why = "gradients are divided by it, and vLLM samples no colder"
        raise ValueError(f"should be 0, which is greedy, or at least {COLDEST}: {why}")
    return temperature


SamplingTemperature = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_not_too_cold)]


def _stops(stop: object) -> object:
    """Return texts and token ids as a tuple, also if there is one only; raise ValueError for others."""
    stops: Any = stop if isinstance(stop, list | tuple) else (stop,)
    if len(stops) > 64:
        raise ValueError("should have at most 64 texts and token ids")
    for text in stops:
        if isinstance(text, bool) or not isinstance(text, str | int):
            raise ValueError("should be texts and token ids")
        if isinstance(text, int) and not 0 <= text <= LARGEST_TOKEN:
            raise ValueError(f"should have token ids from 0 to {LARGEST_TOKEN}")
        if isinstance(text, str) and not 1 <= len(text) <= 1000:
            raise ValueError("should have texts of 1 to 1000 characters")
        if isinstance(text, str) and "\ufffd" in text:
            raise ValueError("should not have U+FFFD, which stands for a character whose bytes are not complete")
    return tuple(stops)


Stop = Annotated[tuple[str | int, ...], BeforeValidator(_stops)]


@node(kind="generate", hands_out=True, metrics=METRICS)
def generate(
    policy: LanguageModel,
    prompts: Prompts,
    *,
    n: Annotated[int, Field(ge=1)] = 1,
    temperature: SamplingTemperature = 1.0,
    max_tokens: Annotated[int, Field(ge=1)] = 256,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = (),
    ignore_eos: bool = False,
    key: Key = Key(),
    name: NodeName = "",
) -> Rollout:
    """Sample `n` responses to each prompt; at temperature 0 the most likely token is taken.

    Any other temperature is at least 0.01: gradients are divided by it, and vLLM samples no colder. The rollout has B =
    prompts × n rows; the samples of a prompt are next to each other. A response has at most `max_tokens` tokens. It
    ends with an end token of the model, unless `ignore_eos`, with a token id in `stop`, or with the token that
    completes a text in `stop`.

    Tokens are drawn from the `top_k` likeliest (0: all), then from the likeliest of these whose probabilities reach
    `top_p`, then from those at least `min_p` times as likely as the likeliest. Before the temperature,
    `repetition_penalty` divides positive logits, and multiplies negative logits, of tokens that are already in the
    prompt or the response. The rollout's log-probs are those of the resulting distribution. The key, the prompt's row
    in the data set, the sample and the position determine each random number, so a response does not depend on its
    batch. Raises ModelError if a prompt is empty, or if it and `max_tokens` exceed the model's positions.
    """
    encode = policy.handle.tokenizer.encode
    contexts = [encode(messages) for messages in prompts.columns.data.column("prompt").to_pylist()]
    truncation = Truncation(top_k, top_p, min_p) if temperature else WHOLE_VOCABULARY
    texts = tuple(text for text in stop if isinstance(text, str))
    ids = tuple(token for token in stop if isinstance(token, int))
    distribution = truncation, repetition_penalty, Stopping(texts, ids, ignore_eos)
    requests = [
        SampleRequest(context, group, sample, max_tokens, temperature, key, *distribution)
        for context, group in zip(contexts, prompts.group.data.tolist(), strict=True)
        for sample in range(n)
    ]

    def rows(places: Sequence[int], completions: Sequence[Completion]) -> Rollout:
        sampled = [requests[place] for place in places]
        return _rollout(policy, prompts, [place // n for place in places], sampled, completions, drawn_at)

    drawn_at = Temperature.with_truncation(temperature, truncation)
    return rows(range(len(requests)), gather(policy.handle, requests, rows))


def _rollout(
    policy: LanguageModel,
    prompts: Prompts,
    prompt_of_row: Sequence[int],
    requests: Sequence[SampleRequest],
    completions: Sequence[Completion],
    temperature: Temperature,
) -> Rollout:
    import pyarrow as pa
    import torch

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
        columns=Columns(prompts.columns.data.take(pa.array(prompt_of_row, pa.int64()))),
        temperature=temperature,
    ).measured(
        Measure("response_length", float(lengths.sum()), len(completions)),
        Measure("finished", float(finished.sum()), len(completions)),
        Measure("entropy", -float(logprobs.sum()), float(lengths.sum()) if temperature.data else 0.0),
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
    """Return lists of numbers as a tensor [B, T] of dtype `kind`, padded on the right with zeros to the longest."""
    import torch

    lengths = torch.tensor([len(numbers) for numbers in lists], dtype=torch.int64)
    padded = torch.zeros(len(lists), max(map(len, lists), default=0), dtype=kind)
    inside = torch.arange(padded.shape[1])[None] < lengths[:, None]
    padded[inside] = torch.tensor([number for numbers in lists for number in numbers], dtype=kind)
    return padded
