"""Prompts of more tokens than a run allows, with a real tokenizer: a character is a token."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flowgraph.errors import DataError
from flowgraph.models.loading import chat_tokenizer
from flowgraph.models.sources import resolve
from nodes.data.prompt_lengths import LONG_PROMPTS, Encode, fit_prompts, refuse_oversized
from tests.looped import looped


@pytest.fixture(scope="module")
def encode(tmp_path_factory: pytest.TempPathFactory) -> object:
    cache = tmp_path_factory.mktemp("cache")
    return chat_tokenizer(resolve("tiny", cache=cache), cache, print).encode


def table(*texts: str) -> pa.Table:
    chats = [[{"role": "user", "content": text}] for text in texts]
    return pa.table({"prompt": chats, "row": range(len(texts))})


def contents(rows: pa.Table) -> list[str]:
    return [chat[0]["content"] for chat in rows["prompt"].to_pylist()]


def test_short_prompts_stay_as_they_are_and_are_counted(encode) -> None:  # type: ignore[no-untyped-def]
    rows = table("1", "12", "123")
    for how in LONG_PROMPTS:
        fitted, stays, counted = fit_prompts(rows, encode, 5, how, "a")
        assert fitted is rows
        assert stays == [True] * 3
        assert (counted.rows, counted.long, counted.longest) == (3, 0, 5)


@looped("how, expected", [("left", "456789"), ("right", "123456"), ("middle", "123789")])
def test_a_cut_keeps_as_much_as_fits(how: str, expected: str, encode) -> None:  # type: ignore[no-untyped-def]
    most = len(encode([{"role": "user", "content": "1" * 6}]))
    fitted, stays, counted = fit_prompts(table("12", "123456789"), encode, most, f"truncate-{how}", "a")
    assert contents(fitted) == ["12", expected]
    assert stays == [True, True]
    assert str(counted) == f"1 of 2 prompts had more than {most} tokens, the longest {most + 3}: cut (truncate-{how})"


def test_the_longest_message_is_cut_first_and_others_after_it(encode) -> None:  # type: ignore[no-untyped-def]
    chat = [{"role": "system", "content": "123"}, {"role": "user", "content": "123456"}]
    rows, overhead = pa.table({"prompt": [chat]}), len(encode(chat)) - 9

    def left(most: int) -> list[str]:
        fitted, _, _ = fit_prompts(rows, encode, overhead + most, "truncate-right", "a")
        return [message["content"] for message in fitted["prompt"].to_pylist()[0]]

    assert (left(8), left(3), left(1), left(0)) == (["123", "12345"], ["123", ""], ["1", ""], ["", ""])
    with pytest.raises(DataError, match=r"a row 0 \(from 0\): `prompt` has \d tokens without its text"):
        left(-1)


def test_long_prompts_are_dropped_unless_none_remains(encode) -> None:  # type: ignore[no-untyped-def]
    rows = table("12", "123456789", "1")
    fitted, stays, counted = fit_prompts(rows, encode, 5, "drop", "a")
    assert fitted["row"].to_pylist() == [0, 2]
    assert list(stays) == [True, False, True]
    assert str(counted) == "1 of 3 prompts had more than 5 tokens, the longest 11: dropped"
    with pytest.raises(DataError) as caught:
        fit_prompts(rows, encode, 2, "drop", "a")
    assert str(caught.value) == (
        "a: all 3 prompts have more than --max-prompt-tokens 2\n  hint: the shortest has 3 tokens, the longest 11"
    )


def test_a_long_prompt_is_refused_with_its_row(encode) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError) as caught:
        fit_prompts(table("12", "123456789"), encode, 5, "refuse", "a")
    assert str(caught.value) == (
        "a row 1 (from 0): `prompt` has 11 tokens, more than --max-prompt-tokens 5\n"
        "    1 of 2 prompts are longer; the longest has 11 tokens\n"
        "  hint: --long-prompts drop, or truncate-left, truncate-right or truncate-middle"
    )


def test_a_prompt_with_too_many_tokens_is_found_before_a_run(encode) -> None:  # type: ignore[no-untyped-def]
    rows = table("12", "1" * 200, "é" * 150)
    most = len(encode([{"role": "user", "content": "1" * 200}]))
    refuse_oversized(rows, lambda: encode, most, "rows", "too many", "shorter")
    with pytest.raises(DataError) as caught:
        refuse_oversized(rows, lambda: encode, most - 1, "rows", "too many", "shorter")
    assert str(caught.value) == f"rows row 1 (from 0): `prompt` has {most} tokens, too many\n  hint: shorter"

    def never() -> Encode:
        raise AssertionError("short texts need no tokenizer")

    refuse_oversized(rows, never, 1000, "rows", "too many", "shorter")
