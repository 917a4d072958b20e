"""Errors: their form, and that every class crosses a process."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from flowgraph import errors
from flowgraph.errors import FlowError, FlowTypeError, UserCodeError, nearest


def classes(base: type[FlowError] = FlowError) -> Iterator[type[FlowError]]:
    yield base
    for each in base.__subclasses__():
        yield from classes(each)


# Those of the tree; others refine one of these where they are raised.
EVERY_CLASS = [each for each in dict.fromkeys(classes()) if each.__module__.startswith("flowgraph.errors")]


def test_the_tree_that_is_drawn_is_the_tree_that_is_there() -> None:
    drawn = re.findall(r"^ +(\w+), an? (\w+): ", errors.__doc__ or "", re.MULTILINE)
    there = [(each.__name__, each.__bases__[1].__name__) for each in EVERY_CLASS if each is not FlowError]
    assert sorted(drawn) == sorted(there)


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_an_error_of_every_class_survives_pickling(kind: type[FlowError]) -> None:
    error = kind("what", where="mine.py:3", notes=["from there", "and there"], hint="do this")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error) == "mine.py:3: what\n    from there\n    and there\n  hint: do this"
    assert (back.what, back.where, back.notes, back.hint) == (error.what, error.where, error.notes, error.hint)


@pytest.mark.parametrize("kind", [each for each in EVERY_CLASS if each is not FlowError])
def test_every_class_refines_a_standard_type(kind: type[FlowError]) -> None:
    standard = [base for base in kind.__mro__ if base.__module__ == "builtins" and base not in (Exception, object)]
    assert len(standard) > 1  # beside BaseException
    assert issubclass(kind, FlowError)


def test_every_error_class_of_the_module_is_one_of_these() -> None:
    found = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)}
    assert found <= set(EVERY_CLASS)


def test_an_error_without_a_place_says_what_only() -> None:
    assert str(FlowTypeError("what")) == "what"


def test_the_nearest_name_is_told_else_a_few_are_listed() -> None:
    assert nearest("epz", ["eps", "mask"]) == "did you mean `eps`?"
    assert nearest("zzz", []) == ""
    names = [f"name{i:02}" for i in range(13)]
    assert nearest("q", names) == f"known: {', '.join(names[:12])} … (13 in all)"


def test_an_exception_without_words_is_said_to_have_no_message() -> None:
    assert str(UserCodeError.raised("importing it", ValueError(), "mine.py:1")) == (
        "mine.py:1: importing it raised ValueError: no message"
    )
