"""One conversation between a policy and an environment: a coroutine over samples of the model's handle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from flowgraph.errors import EnvironmentFailure
from flowgraph.language.handle import Completion, SampleRequest
from nodes.environments.call_formats import MAX_CALLS, ToolCall, read_calls
from nodes.environments.chat_turns import ChatTurns, Message, ToolResult
from nodes.environments.environment_pool import Called, EnvironmentPool, Method

End = Literal["answered", "environment", "turns", "length", "error"]
"""Why a conversation ended: a turn without a call or reply, the environment's word, a limit, or a failed call."""

NAME_CHARACTERS = 64  # of a name that a model wrote, where it is told to it

_MESSAGES = TypeAdapter(list[dict[str, str]])
_CALLS = TypeAdapter(list[dict[Literal["name", "arguments"], Any]])


@dataclass(kw_only=True)
class Episode:
    """The tokens of a conversation after its first context, and what happened in it.

    `written` is 1 for tokens that the policy sampled and 0 for all others, whose log-prob is 0. `turns` is the turn of
    each token. `rewards` are those of turns, at the index of the last token that the policy wrote in them.
    """

    context: tuple[int, ...]
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    written: list[int] = field(default_factory=list[int])
    turns: list[int] = field(default_factory=list[int])
    rewards: dict[int, float] = field(default_factory=dict[int, float])
    texts: list[str] = field(default_factory=list[str])
    messages: list[Message] = field(default_factory=list[Message])
    calls: int = 0
    faults: int = 0
    end: End = "length"

    @property
    def turn(self) -> int:
        """Return the number of turns of the policy."""
        return len(self.texts)

    def sampled(self, completion: Completion, text: str) -> None:
        """Append a turn of the policy."""
        starts = [start for start, _ in completion.versions[1:]] + [len(completion.tokens)]
        for (start, version), stop in zip(completion.versions, starts, strict=True):
            self.versions += [version] * (stop - start)
        self.tokens += completion.tokens
        self.logprobs += completion.logprobs
        self.written += [1] * len(completion.tokens)
        self.turns += [self.turn] * len(completion.tokens)
        self.texts.append(text)
        self.messages.append({"role": "assistant", "content": text})

    def answered(self, messages: Sequence[Message], tokens: Sequence[int]) -> None:
        """Append messages that the policy did not write, as these tokens; they belong to the turn that they answer."""
        self.versions += self.versions[-1:] * len(tokens)
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.written += [0] * len(tokens)
        self.turns += [self.turn - 1] * len(tokens)
        self.messages += messages

    def earned(self, reward: float) -> None:
        """Add a reward to the last token that the policy wrote."""
        last = len(self.written) - 1 - self.written[::-1].index(1)
        self.rewards[last] = self.rewards.get(last, 0.0) + reward


class Lockstep:
    """Lets conversations go on only together: each waits before its next turn for all that are not over.

    An engine in this process computes the samples that are requested at one time in one batch, so this makes its
    batches, and the rounding in them, the same in each run, however long tools take.
    """

    def __init__(self, count: int) -> None:
        self._going_on = count
        self._waiting = dict[int, asyncio.Future[None]]()

    async def turn(self, place: int) -> None:
        """Wait until all conversations that are not over wait; `place` is the index of this one."""
        waiting = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._release()
        await waiting

    def over(self) -> None:
        """Count one conversation as over."""
        self._going_on -= 1
        self._release()

    def _release(self) -> None:
        if len(self._waiting) == self._going_on:
            for place in sorted(self._waiting):
                self._waiting.pop(place).set_result(None)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a conversation: tokens after its first context, turns of the policy, and tokens of a turn."""

    max_tokens: int
    max_turns: int
    turn_tokens: int | None
    stop_on_error: bool


@dataclass(kw_only=True)
class Seat:
    """A conversation and all that plays it: the environment, the row of data, and how turns are sampled and read.

    `calls` is a format of calls by name, or "" for the environment's own reader. `request` has the settings of a
    sample, without a context. `sample` samples a turn, and `wait` is awaited before each.
    """

    environment: EnvironmentPool
    chat: ChatTurns
    calls: str
    row: Mapping[str, Any]
    request: SampleRequest
    limits: Limits
    sample: Callable[[SampleRequest], Awaitable[Completion]]
    wait: Callable[[], Awaitable[None]]
    _state: str | None = None
    _over: bool = False
    _asked: int = 0

    async def play(self) -> Episode:
        """Play the conversation to its end and return it.

        Raises EnvironmentFailure if a method other than a tool fails, and the errors of samples.
        """
        limits, methods = self.limits, self.environment.described.methods
        messages = await self._messages("reset", {"row": self.row}, turn=0)
        if not messages:
            raise self._failure("reset", "it returned no message")
        episode = Episode(context=self.chat.start(messages), messages=list[Message](messages))
        while True:
            await self.wait()
            room = limits.max_tokens - len(episode.tokens)
            longest = room if limits.turn_tokens is None else min(room, limits.turn_tokens)
            context = (*episode.context, *episode.tokens)
            request = replace(self.request, context=context, max_tokens=longest, turn=episode.turn)
            completion = await self.sample(request)
            episode.sampled(completion, self.chat.tokenizer.decode(completion.tokens))
            if not completion.finished:
                break
            end, answers = await self._answers(episode, completion)
            if "turn_reward" in methods:
                episode.earned(await self._reward("turn_reward", episode.turn))
            if end is not None or episode.turn == limits.max_turns:
                episode.end = end or "turns"
                break
            tokens = self.chat.following(answers, completion.tokens)
            if len(episode.tokens) + len(tokens) >= limits.max_tokens:
                break
            episode.answered(answers, tokens)
        if "reward" in methods:
            episode.earned(await self._reward("reward", episode.turn))
        return episode

    async def _answers(self, episode: Episode, completion: Completion) -> tuple[End | None, list[Message]]:
        """Return what answers a turn: the results of its calls, or else the environment's reply; and how it ends it."""
        turn = episode.turn
        if calls := await self._calls(completion, turn):
            results = [await self._result(call, turn) for call in calls]
            faults = sum(fault for _, fault in results)
            episode.calls, episode.faults = episode.calls + len(calls), episode.faults + faults
            end: End | None = "environment" if self._over else None
            end = "error" if faults and self.limits.stop_on_error else end
            return end, self.chat.messages_of([result for result, _ in results])
        if "reply" not in self.environment.described.methods:
            return "answered", []
        messages = await self._messages("reply", {"messages": episode.messages}, turn)
        return None if messages and not self._over else "environment", list[Message](messages)

    async def _calls(self, completion: Completion, turn: int) -> list[ToolCall]:
        tokenizer, tools = self.chat.tokenizer, self.environment.described.tools
        if not tools:
            return []
        text = tokenizer.decode(completion.tokens, special=True)
        if not tokenizer.decode(completion.tokens[-1:]):  # the end of a turn is no part of what it says
            text = text.removesuffix(tokenizer.decode(completion.tokens[-1:], special=True))
        if self.calls:
            return read_calls(self.calls, text, tools)
        called = await self._ask("read", {"text": text}, turn)
        try:
            return [ToolCall(**call) for call in _CALLS.validate_python(called.value or [])][:MAX_CALLS]
        except ValidationError:
            return [ToolCall("", fault="the call cannot be read")]

    async def _result(self, call: ToolCall, turn: int) -> tuple[ToolResult, bool]:
        """Return what the model reads after a call, and whether the call failed."""
        fault, names = call.fault, [tool["function"]["name"] for tool in self.environment.described.tools]
        if not fault and call.name not in names:
            fault = f"there is no tool `{call.name[:NAME_CHARACTERS]}`; the tools are {', '.join(names)}"
        if not fault:
            called = await self._ask("tool", call.arguments, turn, tool=call.name)
            fault = called.fault
            if not fault and isinstance(called.value, str):
                return ToolResult(call.name, called.value), False
        text = f"Error: {fault or 'the tool returned no text'}"
        return ToolResult(call.name[:NAME_CHARACTERS], text[: self.environment.characters]), True

    async def _messages(self, method: Method, arguments: Mapping[str, Any], turn: int) -> list[dict[str, str]]:
        called = await self._ask(method, arguments, turn)
        if called.fault:
            raise self._failure(method, called.fault, called.at)
        try:
            messages = _MESSAGES.validate_python(called.value)
        except ValidationError:
            raise self._failure(method, "it did not return messages") from None
        if any(not {"role", "content"} <= message.keys() for message in messages):
            raise self._failure(method, "each message needs a `content`")
        return messages

    async def _reward(self, method: Method, turn: int) -> float:
        called = await self._ask(method, {}, turn)
        if called.fault or not isinstance(called.value, float) or not math.isfinite(called.value):
            raise self._failure(method, called.fault or "it did not return a number", called.at)
        return called.value

    async def _ask(self, method: Method, arguments: Mapping[str, Any], turn: int, tool: str = "") -> Called:
        """Run a method on the state of this conversation; a failed one leaves the state as it was."""
        request, self._asked = self.request, self._asked + 1
        seed = request.key.bits(request.prompt, request.sample, turn, self._asked)[0]
        called = await self.environment.call(method, self._state, arguments, seed=seed, tool=tool)
        if called.state is not None and not called.fault:
            self._state, self._over = called.state, called.done
        return called

    def _failure(self, method: Method, why: str, at: str = "") -> EnvironmentFailure:
        row = f"sample {self.request.sample} of prompt {self.request.prompt}"
        return EnvironmentFailure.failed(self.environment.environment.text, method, row, why, at=at)
