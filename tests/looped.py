"""Cases of one test, run in a loop: the failure names its case, and a thousand cases are one test, not a thousand."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 200


Test = Callable[..., None]


def looped(names: str, values: Iterable[Any], slow: Iterable[Any] = ()) -> Callable[[Test], Test]:
    """Return a decorator that runs a test once for each value: `pytest.mark.parametrize` in a single test.

    Use it where cases are cheap. The first failure ends the test, and its note names the case. Fixtures are made once
    for all cases, but each has a `tmp_path` of its own, and what it changes by `monkeypatch` is undone after it.
    Decorators can be stacked, also with `parametrize`. What is in `slow` is tried by `make slow` only.
    """
    wanted, values, slow = [name.strip() for name in names.split(",")], list(values), list(slow)
    if not values:
        raise ValueError(f"no case of {names}")

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        rest = signature.replace(parameters=[each for each in signature.parameters.values() if each.name not in wanted])

        @functools.wraps(test)
        def test_of_all(*args: Any, **kwargs: Any) -> None:
            shared = rest.bind(*args, **kwargs).arguments
            for number, value in enumerate(values + slow if all_is_asked_for() else values):
                case = dict(zip(wanted, value if len(wanted) > 1 else [value], strict=True))
                try:
                    with fixtures_of_one(shared, number) as fixtures:
                        test(**fixtures, **case)
                except BaseException as error:
                    error.add_note(
                        f"case {number}: " + ", ".join(f"{name}={SHORT.repr(case[name])}" for name in wanted)
                    )
                    raise

        test_of_all.has_more_in_slow = bool(slow) or getattr(test, "has_more_in_slow", False)  # type: ignore[attr-defined]
        test_of_all.__signature__ = rest  # type: ignore[attr-defined]
        return test_of_all

    return decorate


def all_is_asked_for() -> bool:
    """Return whether this is `make slow`, for which tests/conftest.py loads a profile."""
    return hypothesis.settings.get_current_profile_name() == "slow"


@contextmanager
def fixtures_of_one(shared: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield the fixtures of one case: those that keep what a case leaves behind are its own."""
    fixtures = dict(shared)
    if "tmp_path" in shared:
        fixtures["tmp_path"] = shared["tmp_path"] / str(number)
        fixtures["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in shared:
            fixtures["monkeypatch"] = patch
        yield fixtures
