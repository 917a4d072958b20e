"""Calls in a model's text: each format reads its own, and no text whatever raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.environments.call_formats import CALL_FORMATS, MAX_CALLS, ToolCall, read_calls
from nodes.environments.tools import BadArguments, NotATool, tools_of
from tests.unit.nodes.environments.games import Counter, Digits, NoReset, Untyped

TWO = [tool.schema for tool in tools_of(Counter).values()]
ONE = [tool.schema for tool in tools_of(Digits).values()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'so\n<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"number\\": 3}"}'),
        ("llama3", '{"name": "add", "parameters": {"number": 3}}'),
        ("llama3", '<|python_tag|>{"name": "add", "parameters": {"number": 3}}'),
        ("python", "<|python_tag|>add(number=3)"),
        ("python", "<|python_start|>[add(3)]<|python_end|>"),
        ("python", "[add(number=3)]"),
        ("react", 'Thought: sum\nAction: add\nAction Input: {"number": 3}'),
        ("react", 'Action: add\nAction Input: {"number": 3}\nObservation: 3\nAction: add\nAction Input: {"number": 9}'),
    ],
)
def test_each_format_reads_its_call(name: str, text: str) -> None:
    assert read_calls(name, text, TWO) == [ToolCall("add", {"number": 3})]


@pytest.mark.parametrize(
    ("name", "text"),
    [("boxed", r"so \boxed{1} and \boxed{{3}}"), ("whole", " {3}\n"), ("react", "Action: take\nAction Input: {3}")],
)
def test_the_only_argument_of_the_only_tool_needs_no_name(name: str, text: str) -> None:
    if name == "react":
        text = text.replace("{3}", "'{3}'")
    assert read_calls(name, text, ONE) == [ToolCall("take", {"number": "{3}"})]
    assert not [call for call in read_calls(name, text, TWO) if not call.fault and call.arguments]


def test_several_calls_are_read_in_order_up_to_a_limit() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"number": %d}}</tool_call>'
    numbers = [read.arguments["number"] for read in read_calls("hermes", "".join(call % i for i in range(40)), TWO)]
    assert numbers == list(range(MAX_CALLS))
    many = "; ".join(json.dumps({"name": "add", "parameters": {"number": i}}) for i in (1, 2))
    assert [read.arguments["number"] for read in read_calls("llama3", many, TWO)] == [1, 2]


@pytest.mark.parametrize("name", sorted(CALL_FORMATS))
@pytest.mark.parametrize("text", ["", "The answer is 7.", "<think>add(3)</think> 7", "{7}"])
def test_plain_text_has_no_call(name: str, text: str) -> None:
    assert name == "whole" or not [call for call in read_calls(name, text, TWO) if not call.fault]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("hermes", "<tool_call>{}</tool_call>", "a JSON object with"),
        ("hermes", "<tool_call>{'name': 3", "not valid JSON"),
        ("hermes", "<tool_call>" + "[" * 100_00 + "</tool_call>", "nested too deeply"),
        ("hermes", "<tool_call>" * 70_000, "at most"),
        ("llama3", '{"name": "add", "parameters": [3]}', "not a JSON object"),
        ("python", "<|python_tag|>add(number=__import__('os').getpid())", "plain values"),
        ("python", "<|python_tag|>add(1, 2, 3)", "takes 2 arguments"),
        ("python", "<|python_tag|>add(" + "(" * 3_000, "at most"),
        ("react", "Action: add\nAction Input: 3", "not a JSON object"),
        ("boxed", r"\boxed{3", "not closed"),
    ],
)
def test_what_is_nearly_a_call_says_why_it_is_none(name: str, text: str, why: str) -> None:
    read = read_calls(name, text, ONE if name == "boxed" else TWO)
    assert read, "a fault that nobody sees"
    assert all(why in call.fault for call in read)


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "Action:", "Action Input:", "Observation:", "\\boxed{"),
        *("}", "{", '{"name":', '"add"', '"arguments":', "add(", ")", "[", "]", "\n", "number=", "\x00", "\ud800", "'"),
        "9" * 5_000,
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=40).map("".join))
def test_no_text_raises(text: str) -> None:
    for name in CALL_FORMATS:
        for tools in (ONE, TWO, []):
            for call in read_calls(name, text, tools):
                assert call.fault or isinstance(call.name, str)


def test_a_schema_comes_from_signature_and_docstring() -> None:
    add: Any = tools_of(Counter)["add"].schema["function"]
    assert (add["name"], add["description"]) == ("add", "Add a number to the total.")
    assert add["parameters"]["required"] == ["number"]
    assert add["parameters"]["properties"] == {
        "number": {"type": "integer", "description": "what is added"},
        "times": {"type": "integer", "default": 1, "description": "how often it is added"},
    }
    assert list(tools_of(Counter)) == ["add", "draw"]


def test_arguments_are_converted_to_their_types_or_refused() -> None:
    add = tools_of(Counter)["add"]
    assert add.checked({"number": "3"}) == {"number": 3}
    for wrong in ({}, {"number": "x"}, {"number": 1, "more": 2}, {"number": [1]}):
        with pytest.raises(BadArguments):
            add.checked(wrong)


@pytest.mark.parametrize(("kind", "why"), [(NoReset, "no method `reset"), (Untyped, "`number` has no type")])
def test_a_class_that_cannot_be_an_environment_is_refused(kind: type, why: str) -> None:
    with pytest.raises(NotATool, match=why):
        tools_of(kind)
