"""Conversations of several turns between a policy and an environment, with tools and other voices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from flowgraph import Metric, node
from flowgraph.errors import EnvironmentFailure, RuleError, nearest
from flowgraph.language import Key, Measure, Parts
from flowgraph.language.handle import WHOLE_VOCABULARY, Handle, SampleRequest, Stopping, Truncation, run_together
from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory, Turns, Versions
from nodes.environments.call_formats import CALL_FORMATS, CallFormat
from nodes.environments.chat_turns import ChatTurns
from nodes.environments.environment_pool import EnvironmentPool
from nodes.environments.episode import Episode, Limits, Lockstep, Seat
from nodes.environments.tools import tools_of
from nodes.sampling import MinP, Penalty, SamplingTemperature, Stop, TopK, TopP, pad
from nodes.scoring import OF_SCORES, measures_of
from nodes.scoring.grader_process import columns_of
from nodes.scoring.rules import RuleRef, reference_of, resolve
from nodes.values import (
    Columns,
    Finished,
    LanguageModel,
    LogProbs,
    Prompts,
    Rewards,
    Rollout,
    Scores,
    Temperature,
    Text,
)

METRICS = (
    Metric("response_length", "tokens", headline=True, about="tokens after the first context, of all voices"),
    Metric("written", "tokens", about="tokens of a conversation that the policy wrote"),
    Metric("finished", about="share of conversations that ended before a limit on their tokens"),
    Metric("turns", headline=True, about="turns of the policy in a conversation"),
    Metric("tool_calls", about="calls of tools in a conversation"),
    Metric("tool_errors", about="share of calls that failed, so that the policy read an error"),
    Metric(
        "entropy",
        "nats",
        headline=True,
        about="mean of -log p over the sampled tokens, an estimate of the policy's entropy",
    ),
    *OF_SCORES,
)


def _has_tools(environment: type | str) -> type | str:
    """Return an environment; of a class, raise ValueError if it cannot be one."""
    if isinstance(environment, type):
        tools_of(environment)
    return environment


EnvironmentName = Annotated[type | str, AfterValidator(_has_tools)]
Calls = str | Callable[..., Any]
warm_environments = cache(EnvironmentPool)  # by their settings; their processes end with this one


class TurnScores(Rewards):
    """The reward of each turn, at the last token that the policy wrote in it, and 0 elsewhere: [B, T]."""


class Episodes(Rollout):
    """Conversations: after their first context, turns of the policy, and what tools and other voices said.

    `mask` is 1 for tokens that the policy sampled, and 0 for all others, whose `logprobs` are 0. `turns` is the turn of
    each token. `turn_scores` and `scores` are what the environment rewarded; they are NaN if it has no rewards. `text`
    has the turns of the policy alone, joined by line ends.
    """

    turns: Turns
    turn_scores: TurnScores
    scores: Scores


@node(kind="generate", hands_out=True, metrics=METRICS)
def interact(
    policy: LanguageModel,
    prompts: Prompts,
    *,
    env: EnvironmentName,
    n: Annotated[int, Field(ge=1)] = 1,
    max_turns: Annotated[int, Field(ge=1)] = 8,
    max_tokens: Annotated[int, Field(ge=1)] = 1024,
    turn_tokens: Annotated[int | None, Field(ge=1)] = None,
    calls: Calls = "hermes",
    stop_on_error: bool = False,
    keep_history: bool = False,
    workers: Annotated[int, Field(ge=1, le=256)] = 1,
    limit_s: Annotated[float, Field(gt=0)] = 10.0,
    tool_characters: Annotated[int, Field(ge=16, le=1_000_000)] = 4_096,
    allow: tuple[str, ...] = (),
    confined: bool = False,
    temperature: SamplingTemperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = (),
    ignore_eos: bool = False,
    key: Key = Key(),
) -> Episodes:
    """Sample `n` conversations from each prompt between the policy and the environment `env`; return them as rows.

    `env` is a class at a module's top level, `path.py:Class`, or `path.py:column:NAME`, where the column NAME of each
    row names a class of that file. `reset(row)` returns the first messages, or a text of the user's. Public methods
    with types are tools, explained to the model by signature and docstring. `reply(messages)`, if there is one, answers
    turns without a call, or returns None. `reward()` is the reward of a conversation, `turn_reward()` that of a turn;
    either may be missing. Each conversation has its own object, whose attributes must be picklable.

    A conversation ends with a turn without a call or reply; when the attribute `done` of the object is true; after
    `max_turns` turns of the policy; when its tokens after the first context reach `max_tokens`, or a turn reaches
    `turn_tokens`; and after a failed call if `stop_on_error`. Calls in the last turn still run, since rewards may
    depend on them. `calls` is the format of calls: "hermes" (Qwen too), "llama3", "python", "react", "boxed", "whole",
    or a function of your own, in the environment's file or a package, from a turn's text to (name, arguments) pairs.

    Methods run in `workers` processes, confined as rules of scores are (`allow`, `confined`), each call within
    `limit_s` seconds. A tool that raises, hangs, or gets arguments that do not fit leaves the object as it was, and the
    policy reads an error instead of the result. Results are cut to `tool_characters`. Tokens are concatenated and never
    encoded again: a chat template must render earlier turns as they were; with `keep_history`, what it would leave out
    of them, such as thoughts, stays in the context. The other settings are those of `generate`, for each turn. The key,
    the prompt, the sample and the turn determine each random number.

    Raises EnvironmentFailure if the class cannot be used, or if a method other than a tool fails; ModelError if the
    template cannot render such a conversation; and the errors of `generate`.
    """
    rows, how = [columns_of(row) for row in prompts.columns.data.to_pylist()], _call_format(calls)
    truncation = Truncation(top_k, top_p, min_p) if temperature else WHOLE_VOCABULARY
    stopping = Stopping(
        texts=tuple(text for text in stop if isinstance(text, str)),
        ids=tuple(token for token in stop if isinstance(token, int)),
        ignore_eos=ignore_eos,
    )
    guard: Any = {"reader": how if isinstance(how, RuleRef) else None, "workers": workers, "limit_s": limit_s}
    guard |= {"characters": tool_characters, "allow": allow, "confined": confined}
    table = Table(
        policy.handle,
        groups=prompts.group.data.tolist(),
        rows=rows,
        n=n,
        environments=[warm_environments(reference, **guard) for reference in environments_of(env, rows)],
        calls=calls if isinstance(how, CallFormat) else "",
        keep_history=keep_history,
        request=SampleRequest((), 0, 0, max_tokens, temperature, key, truncation, repetition_penalty, stopping),
        limits=Limits(max_tokens=max_tokens, max_turns=max_turns, turn_tokens=turn_tokens, stop_on_error=stop_on_error),
    )
    sampled_at = Temperature.with_truncation(temperature, truncation)

    def episodes(places: Sequence[int], played: Sequence[Episode]) -> Episodes:
        return _episodes(prompts, places, played, table, sampled_at)

    conversations = [group for group in table.groups for _ in range(n)]
    return episodes(range(len(conversations)), run_together(policy.handle, conversations, table.play, episodes))


@node(kind="score")
def earned(episodes: Annotated[Episodes, Parts("scores")]) -> Scores:
    """Return what the environment rewarded each conversation with, as the score of a check of held-out rows: [B]."""
    return Scores(episodes.scores.data)


@dataclass(eq=False)
class Table:
    """The conversations of a batch: `n` for each of `rows`, with the model behind `handle`."""

    handle: Handle
    _: KW_ONLY
    groups: Sequence[int]
    rows: Sequence[Mapping[str, Any]]
    n: int
    environments: Sequence[EnvironmentPool]
    calls: str
    keep_history: bool
    request: SampleRequest
    limits: Limits

    def __post_init__(self) -> None:
        alike = getattr(self.handle, "lockstep", False)
        self._lockstep = Lockstep(len(self.rows) * self.n) if alike else None
        self._chats = {pool: self._chat(pool) for pool in dict.fromkeys(self.environments)}

    @property
    def rewarded(self) -> bool:
        """Return whether all environments reward their conversations."""
        return all({"reward", "turn_reward"} & {*pool.described.methods} for pool in self._chats)

    async def play(self, place: int, early: bool) -> Episode:
        """Play the conversation at index `place` of all, with requests that are `early` or not, and return it."""
        row, lockstep = place // self.n, self._lockstep

        async def wait() -> None:
            if lockstep is not None:
                await lockstep.turn(place)

        seat = Seat(
            environment=self.environments[row],
            chat=self._chats[self.environments[row]],
            calls=self.calls,
            row=self.rows[row],
            request=replace(self.request, prompt=self.groups[row], sample=place % self.n, early=early),
            limits=self.limits,
            sample=self.handle.sample,
            wait=wait,
        )
        episode = await seat.play()
        if lockstep is not None:
            lockstep.over()
        return episode

    def _chat(self, pool: EnvironmentPool) -> ChatTurns:
        calls, described = CALL_FORMATS[self.calls or "whole"], pool.described
        replies = "reply" in described.methods
        return ChatTurns.of(
            self.handle.tokenizer, described.tools, calls, replies=replies, keep_history=self.keep_history
        )


def environments_of(env: EnvironmentName, rows: Sequence[Mapping[str, Any]]) -> list[RuleRef]:
    """Return the reference to the environment of each row: `env`, or the class that a column of the row names.

    Raises EnvironmentFailure if `env` names no class, or a row none of the file that `env` names.
    """
    text = env if isinstance(env, str) else reference_of(env)
    source, by_column, column = text.partition(":column:")
    if not by_column:
        return [_reference(text)] * len(rows)
    names = [row.get(column) for row in rows]
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            why = f"a row has {name!r:.80} in the column `{column}`"
            raise EnvironmentFailure.not_loaded(text, why, hint=f"each row names a class of {source}")
    return [_reference(f"{source}:{name}") for name in names]


def _reference(text: str) -> RuleRef:
    if ":" not in text:
        hint = "write path.py:NAME or package.module:NAME"
        raise EnvironmentFailure.not_loaded(text, "it does not name a file or module", hint=hint)
    try:
        return resolve(text)
    except RuleError as error:
        raise EnvironmentFailure.not_loaded(text, error.what, hint=error.hint) from None


def _call_format(calls: Calls) -> CallFormat | RuleRef:
    """Return the format of this name, or a reference to the user's own reader."""
    if isinstance(calls, str) and calls in CALL_FORMATS:
        return CALL_FORMATS[calls]
    if isinstance(calls, str) and ":" not in calls:
        hint = f"{nearest(calls, CALL_FORMATS)} (one of your own: path.py:name)"
        raise EnvironmentFailure(f"no format of calls `{calls}`", hint=hint)
    return _reference(calls if isinstance(calls, str) else reference_of(calls))


def _episodes(
    prompts: Prompts, places: Sequence[int], played: Sequence[Episode], table: Table, temperature: Temperature
) -> Episodes:
    import pyarrow as pa
    import torch

    lengths = torch.tensor([len(episode.tokens) for episode in played], dtype=torch.int64)
    mask, logprobs = (
        pad([getattr(episode, name) for episode in played], torch.float32) for name in ("written", "logprobs")
    )
    turn_scores, prompt_of_row = torch.zeros_like(mask), [place // table.n for place in places]
    for row, episode in enumerate(played):
        for place, reward in episode.rewards.items():
            turn_scores[row, place] = reward
    if not table.rewarded:
        turn_scores.fill_(math.nan)
    group = torch.tensor([table.groups[row] for row in prompt_of_row], dtype=torch.int64)
    text = Text(pa.array(["\n".join(episode.texts) for episode in played], pa.string()))
    text.extras = tuple(map(_extras, played))
    scores = turn_scores.sum(1)
    return Episodes(
        group=Group(group),
        sample=Sample(torch.tensor([place % table.n for place in places], dtype=torch.int64)),
        trajectory=Trajectory(torch.zeros(len(played), dtype=torch.int64)),
        context=Context(pa.array([episode.context for episode in played], pa.list_(pa.int32()))),
        tokens=Tokens(pad([episode.tokens for episode in played], torch.int64)),
        mask=Mask(mask),
        lengths=Lengths(lengths),
        logprobs=LogProbs(logprobs),
        versions=Versions(pad([episode.versions for episode in played], torch.int64)),
        finished=Finished(torch.tensor([episode.end != "length" for episode in played], dtype=torch.bool)),
        text=text,
        columns=Columns(prompts.columns.data.take(pa.array(prompt_of_row, pa.int64()))),
        temperature=temperature,
        turns=Turns(pad([episode.turns for episode in played], torch.int64)),
        turn_scores=TurnScores(turn_scores),
        scores=Scores(scores),
    ).measured(*_measures(played, temperature), *(measures_of(scores, group) if table.rewarded else ()))


def _measures(played: Sequence[Episode], temperature: Temperature) -> list[Measure]:
    count, written = len(played), sum(sum(episode.written) for episode in played)
    nats = -sum(sum(episode.logprobs) for episode in played)
    calls = sum(episode.calls for episode in played)
    return [
        Measure("response_length", sum(len(episode.tokens) for episode in played), count),
        Measure("written", written, count),
        Measure("finished", sum(episode.end != "length" for episode in played), count),
        Measure("turns", sum(episode.turn for episode in played), count),
        Measure("tool_calls", calls, count),
        Measure("tool_errors", sum(episode.faults for episode in played), calls),
        Measure("entropy", nats, written if temperature.data else 0.0),
    ]


def _extras(episode: Episode) -> str:
    """Return what is recorded with a row: its messages as JSON, how it ended, and counts of calls."""
    facts = {"end": episode.end, "calls": episode.calls, "call_errors": episode.faults}
    return json.dumps({**facts, "messages": json.dumps(episode.messages, ensure_ascii=False)})
