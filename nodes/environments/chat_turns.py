"""The tokens of a conversation: the first context, and what follows each turn of the model, by its chat template.

Ids are concatenated and never encoded again. New messages are rendered as the difference that they make to a short
made-up chat; `ChatTurns.of` checks that a template allows this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowgraph.errors import ModelError
from flowgraph.language.handle import Tokenizer
from nodes.environments.call_formats import CallFormat

Message = Mapping[str, Any]

QUESTION: Message = {"role": "user", "content": "7 + 5?"}
ANSWER, THOUGHT = "12", "<think>\n7 + 5 = 12\n</think>\n\n12"
RESULT = "3 4"  # what follows: a text that the tokenizers of small models can encode
_KEEP = "keep_history=True keeps what the template would leave out; or use a template that keeps its history"


@dataclass(frozen=True)
class ToolResult:
    """What a model reads after a call: the tool's name and its text, or the text of an error."""

    tool: str
    text: str


@dataclass(frozen=True)
class ChatTurns:
    """Renders conversations with one model's template; `tools` are the schemas that the template itself explains.

    `explained` tells the model of its tools where the template does not, and `tool_role` is whether the template has a
    role for results of tools; else they are a user's message, in the form `result`.
    """

    tokenizer: Tokenizer
    tools: Sequence[Mapping[str, Any]]
    explained: str
    tool_role: bool
    result: str

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]],
        calls: CallFormat,
        *,
        replies: bool,
        keep_history: bool = False,
    ) -> ChatTurns:
        """Return the rendering for an environment with these tools, which also `replies` in words, or not.

        Raises ModelError if the model's template cannot render what such an environment says, and, unless
        `keep_history`, if it renders earlier turns in another way once messages follow them.
        """
        native = calls.native and bool(tools) and _explains(tokenizer, tools)
        explained = "" if native or not tools else calls.explain(tools)
        turns = cls(tokenizer, tools if native else (), explained, tool_role=True, result=calls.result)
        if tools and not turns._shows("tool"):
            turns = cls(tokenizer, turns.tools, explained, tool_role=False, result=calls.result)
        roles = [*(["tool"] if tools and turns.tool_role else []), *(["user"] if replies else [])]
        for role in roles or ["user"]:
            if role == "user" and not turns._shows("user"):
                raise ModelError("its chat template renders no message after an answer", hint="name another model")
            for answer in (ANSWER,) if keep_history else (ANSWER, THOUGHT):
                if not turns._keeps(role, answer):
                    what = "its chat template renders earlier turns in another way once messages follow"
                    raise ModelError(what, notes=[f"found with a message of the role `{role}`"], hint=_KEEP)
        return turns

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of the first messages, with what tells the model of its tools, up to its first turn."""
        if not self.explained:
            return self.tokenizer.tokens_of(self._rendered(messages))
        first, rest = messages[0], messages[1:]
        if first.get("role") == "system":
            return self._start([{**first, "content": f"{first['content']}\n\n{self.explained}"}, *rest])
        try:
            return self._start([{"role": "system", "content": self.explained}, *messages])
        except Exception:  # noqa: BLE001 - a template without that role raises what it likes
            return self._start([{**first, "content": f"{self.explained}\n\n{first['content']}"}, *rest])

    def _start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self.tokenizer.tokens_of(self._rendered(messages))

    def messages_of(self, results: Sequence[ToolResult]) -> list[Message]:
        """Return the messages that tell the model of the results of its calls."""
        if self.tool_role:
            return [{"role": "tool", "name": result.tool, "content": result.text} for result in results]
        texts = [self.result.replace("{text}", result.text) for result in results]
        return [{"role": "user", "content": "\n".join(texts)}] if texts else []

    def following(self, messages: Sequence[Message], last: Sequence[int]) -> tuple[int, ...]:
        """Return the token ids that follow a turn: its end, if the model did not write it, and the new messages.

        `last` are the token ids of the turn. The ids end where the model's next turn starts.
        """
        text = self._after(messages, ANSWER)
        written = self.tokenizer.decode(last[-1:], special=True)
        if written and text.startswith(written):
            text = text[len(written) :]
        anchored, anchor = self.tokenizer.tokens_of("\n" + text), self.tokenizer.tokens_of("\n")
        # Some tokenizers put a space before a text: after a line break they do not.
        return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else self.tokenizer.tokens_of(text)

    def _after(self, messages: Sequence[Message], answer: str) -> str:
        """Return the text behind `answer`, with these messages after it; raise ModelError if it is not kept."""
        whole = self._rendered([QUESTION, {"role": "assistant", "content": answer}, *messages])
        text = _behind(self._rendered([QUESTION]), answer, whole)
        if text is None:
            raise ModelError("its chat template renders earlier turns in another way once messages follow", hint=_KEEP)
        return text

    def _keeps(self, role: str, answer: str) -> bool:
        """Return whether two turns with this answer stay as they are when a message of this role follows each."""
        turn = [{"role": "assistant", "content": answer}, {"role": role, "name": "f", "content": RESULT}]
        one = self._rendered([QUESTION, *turn])
        if _behind(self._rendered([QUESTION]), answer, one) is None:
            return False
        return _behind(one, answer, self._rendered([QUESTION, *turn, *turn])) is not None

    def _shows(self, role: str) -> bool:
        try:
            turn = [{"role": "assistant", "content": ANSWER}, {"role": role, "name": "f", "content": RESULT}]
            return RESULT in self._rendered([QUESTION, *turn])[len(self._rendered([QUESTION])) :]
        except Exception:  # noqa: BLE001 - a template raises what it likes for a role that it lacks
            return False

    def _rendered(self, messages: Sequence[Message]) -> str:
        return self.tokenizer.render(messages, self.tools)


def _behind(before: str, answer: str, whole: str) -> str | None:
    """Return what follows `before` and `answer` in `whole`; None if it does not start with them.

    White space between them is the model's own: some templates write a space before an answer, which models learn.
    """
    rest = whole[len(before) :].lstrip() if whole.startswith(before) else ""
    return rest[len(answer) :] if rest.startswith(answer) else None


def _explains(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]]) -> bool:
    try:
        text = tokenizer.render([QUESTION], tools)
    except Exception:  # noqa: BLE001 - a template raises what it likes
        return False
    return all(str(tool["function"]["name"]) in text for tool in tools)
