"""Rendering: the ids of a conversation are those of its template, put together turn by turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import ModelError
from nodes.environments.call_formats import CALL_FORMATS
from nodes.environments.chat_turns import ChatTurns, ToolResult
from nodes.environments.tools import tools_of
from tests.unit.nodes.environments.chats import TEMPLATES, tokenizer_of
from tests.unit.nodes.environments.games import Counter

TOOLS = [tool.schema for tool in tools_of(Counter).values()]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>|[]"), min_size=1, max_size=12).map(str.strip)


def turns(name: str, *, tools: bool = False, replies: bool = True, calls: str = "hermes", **more: Any) -> ChatTurns:
    schemas = TOOLS if tools else []
    return ChatTurns.of(tokenizer_of(name), schemas, CALL_FORMATS[calls], replies=replies, **more)


@pytest.mark.parametrize("name", ["chatml", "headers", "alternating"])
@given(said=st.lists(st.tuples(TEXT.filter(bool), TEXT.filter(bool)), min_size=1, max_size=5))
def test_concatenation_equals_rendering_where_a_template_keeps_its_prefix(
    name: str, said: list[tuple[str, str]]
) -> None:
    chat, tokenizer = turns(name), tokenizer_of(name)
    messages = [{"role": "user", "content": "7?"}]
    ids = chat.start(messages)
    for answer, reply in said:
        sampled = tokenizer.tokens_of((" " if name == "alternating" else "") + answer + TEMPLATES[name][1])
        new = [{"role": "user", "content": reply}]
        ids += sampled + chat.following(new, sampled)
        messages += [{"role": "assistant", "content": answer}, *new]
    assert tokenizer.decode(ids, special=True) == tokenizer.render(messages)
    assert ids == tokenizer.encode(messages)


@pytest.mark.parametrize("name", ["chatml", "headers"])
def test_results_of_tools_have_their_role_and_are_rendered_together(name: str) -> None:
    chat, tokenizer = turns(name, tools=True, replies=False), tokenizer_of(name)
    assert chat.tool_role
    new = chat.messages_of([ToolResult("add", "3"), ToolResult("add", "4")])
    sampled = tokenizer.tokens_of("x" + TEMPLATES[name][1])
    whole = [{"role": "user", "content": "7?"}, {"role": "assistant", "content": "x"}, *new]
    start = tokenizer.tokens_of(tokenizer.render(whole[:1], chat.tools))
    assert start + sampled + chat.following(new, sampled) == tokenizer.tokens_of(tokenizer.render(whole, chat.tools))


def test_a_turn_that_a_stop_text_ended_gets_the_end_that_the_template_writes() -> None:
    chat, tokenizer = turns("chatml"), tokenizer_of("chatml")
    new = [{"role": "user", "content": "go on"}]
    ended, stopped = (chat.following(new, tokenizer.tokens_of(text)) for text in ("a<|im_end|>", "a"))
    assert stopped == tokenizer.tokens_of("<|im_end|>") + ended


def test_a_template_without_a_role_for_tools_gets_their_results_as_a_users_message() -> None:
    chat = turns("alternating", tools=True, replies=False, calls="react")
    assert not chat.tool_role
    messages = chat.messages_of([ToolResult("add", "3"), ToolResult("add", "4")])
    assert messages == [{"role": "user", "content": "Observation: 3\nObservation: 4"}]


def test_tools_are_explained_by_the_template_or_else_by_the_format() -> None:
    native, told = turns("chatml", tools=True), turns("headers", tools=True)
    assert (bool(native.tools), native.explained, bool(told.tools)) == (True, "", False)
    question = [{"role": "user", "content": "7?"}]
    text = tokenizer_of("headers").decode(told.start(question), special=True)
    assert text.startswith("<|start|>system<|end|>\n\n# Tools") and '"name": "add"' in text
    system = [{"role": "system", "content": "be kind"}, *question]
    assert "be kind\n\n# Tools" in tokenizer_of("headers").decode(told.start(system), special=True)
    alternating = tokenizer_of("alternating").decode(turns("alternating", tools=True).start(question), special=True)
    assert alternating.startswith("[INST] # Tools") and alternating.endswith("7? [/INST]")


@pytest.mark.parametrize("name", ["forgets thoughts", "opens thoughts"])
def test_a_template_that_rewrites_history_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="renders earlier turns in another way") as caught:
        turns(name)
    assert "keep_history=True" in str(caught.value)


def test_history_that_a_template_would_leave_out_can_be_kept() -> None:
    chat, tokenizer = turns("forgets thoughts", keep_history=True), tokenizer_of("forgets thoughts")
    sampled = tokenizer.tokens_of("<think>\nhm\n</think>\n\n3<|im_end|>")
    ids = sampled + chat.following([{"role": "user", "content": "+"}], sampled)
    assert tokenizer.decode(ids, special=True) == (
        "<think>\nhm\n</think>\n\n3<|im_end|>\n<|im_start|>user\n+<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ModelError):  # what it says before each turn is not what it shows later
        turns("opens thoughts", keep_history=True)


def test_thoughts_are_kept_where_only_tools_answer() -> None:
    assert turns("forgets thoughts", tools=True, replies=False).tool_role
