"""The kept answers of aiconfigurator are what the package says: it is asked again, in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import serving_opinion as opinion
from benchmarks.serving_opinion_answers import HERE, Snapshot, ask

NEARLY = 2e-3  # answers are kept with four digits


@pytest.mark.slow
def test_the_package_says_what_was_kept() -> None:
    """Ask every question again: about four minutes, and one more for the environment where it is not made yet."""
    now, kept = ask(environment(), opinion.asked(opinion.read())), Snapshot.read()
    assert now.told["package"] == kept.told["package"]
    assert now.told["answers"].keys() == kept.told["answers"].keys()
    both = {name: (now.told["answers"][name], told) for name, told in kept.told["answers"].items()}
    assert [name for name, (theirs, told) in both.items() if not same(theirs, told)] == []


def environment() -> Path:
    return HERE.parent / ".bench" / "aiconfigurator"


def same(now: object, kept: object) -> bool:
    """Compare what was told of a setup: its release, its reasons, and its numbers nearly."""
    if isinstance(now, dict) and isinstance(kept, dict):
        return now.keys() == kept.keys() and all(same(now[each], kept[each]) for each in now)
    if isinstance(now, list) and isinstance(kept, list):
        return len(now) == len(kept) and all(map(same, now, kept))
    return now == (pytest.approx(kept, rel=NEARLY) if isinstance(kept, float) else kept)
