"""The forms of rules that other trainers call, and the results that a rule may return.

verl's `custom_reward_function` and TRL's reward functions are recognised by the names of their parameters. Grader
processes load this file by its path; it imports the standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

MAX_EXTRAS = 32
LARGEST = 3.4e38  # scores are float32
NAME_CHARACTERS, TEXT_CHARACTERS, TEXTS_CHARACTERS = 64, 300, 3_000
_UNNAMED = re.compile(r"[^\w/@%+-]")


class NotAScore(ValueError):
    """A rule's result that has no score; the text says why."""


def is_batched(names: Collection[str]) -> bool:
    """Return whether `names` are the parameters of a TRL reward function, which scores a batch of `completions`."""
    return "completions" in names


def in_form(columns: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a response's columns in the form that a rule with the parameters `names` expects.

    For verl's signature, `solution_str` is the response and `extra_info` is a dict. For TRL's, each column is a list of
    one value, and there are `prompts` and `completions`; the completion is a list of one message if the prompt is a
    list of messages. Any other rule gets a copy of the columns.

    >>> in_form({"response": "7", "prompt": "3 + 4"}, ["prompts", "completions"])["completions"]
    ['7']
    """
    response, prompt = columns.get("response"), columns.get("prompt")
    if is_batched(names):
        messages = [{"role": "assistant", "content": response}]
        completion = messages if isinstance(prompt, list) else response
        return {name: [value] for name, value in {**columns, "prompts": prompt, "completions": completion}.items()}
    if "solution_str" in names:
        return {**columns, "solution_str": response, "extra_info": columns.get("extra_info") or {}}
    return dict(columns)


def awaited(value: object) -> object:
    """Return a rule's result; if the rule returned a coroutine, run the coroutine to its end and return its result."""
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def single(value: Any) -> object:
    """Return the only score of a batch of one completion. Raises NotAScore unless `value` is a collection of one item.

    A text or a mapping does not count as such a collection.

    >>> single([0.5])
    0.5
    """
    if not hasattr(value, "__len__") or isinstance(value, str | Mapping):
        raise NotAScore("where a list of one score is due")
    if len(value) != 1:
        raise NotAScore(f"{len(value)} scores for one completion")
    item: object = value[0]
    return item


def finite(value: Any) -> float | None:
    """Return a number, or a scalar of an array library, as a float; None for anything that float32 cannot hold.

    >>> finite(True), finite(float("nan")), finite("1"), finite(1e300)
    (1.0, None, None, None)
    """
    if not isinstance(value, Real | Decimal) and hasattr(value, "item"):
        with contextlib.suppress(Exception):
            value = value.item()
    with contextlib.suppress(Exception):  # a number of a class of the user's
        if isinstance(value, Real | Decimal) and abs(number := float(value)) <= LARGEST:
            return number
    return None


def extras_of(value: Mapping[Any, Any]) -> dict[str, float | str | None]:
    """Return the entries of a rule's dict besides `score`: finite numbers as floats, other floats as None, else text.

    Texts are cut to 300 characters each, and to 3,000 together; None stays. Names are cut to 64 characters; characters
    other than letters, digits and `_/@%+-` become `_`. Raises NotAScore for over 32 entries besides `score`, for a dict
    without `score`, and for an entry whose `__str__` raises.

    >>> extras_of({"score": 1.0, "acc": True, "pred": "x = 7", "of.form": 0.5})
    {'acc': 1.0, 'pred': 'x = 7', 'of_form': 0.5}
    """
    if "score" not in value:
        raise NotAScore("which has no `score`")
    if len(value) > MAX_EXTRAS + 1:
        raise NotAScore(f"{len(value)} entries; at most {MAX_EXTRAS} beside `score` are recorded")
    extras, left = dict[str, float | str | None](), TEXTS_CHARACTERS
    for name, entry in value.items():
        if name == "score":
            continue
        number = finite(entry)
        extra: float | str | None = number
        if number is None and entry is not None and not isinstance(entry, float):
            try:
                text = str(entry)
            except Exception as error:  # noqa: BLE001 - a user's own __str__
                raise NotAScore(f"whose `{name}` has no text: {type(error).__name__}") from None
            extra = text[: min(TEXT_CHARACTERS, left)].encode("utf-8", "replace").decode()
            left -= len(extra)
        extras[_UNNAMED.sub("_", str(name))[:NAME_CHARACTERS] or "_"] = extra
    return extras
