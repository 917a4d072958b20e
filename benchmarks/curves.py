"""Learning curves as they are kept, and when one has learnt. How they are measured is in `learning.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "algorithms" / "learning.json"
EVERY, HELD_OUT = 20, 200  # steps between checks, and held-out prompts of each
LEARNT = 0.9  # of held-out prompts

# What differs from `flowgraph run FLOW`: settings that a flow's text fixes for models of another size.
SETTINGS: Mapping[str, Sequence[str]] = {
    "gpg_qwen2_7b": (
        "policy.update.lr=0.001",
        "policy.generate.max_tokens=4",
        "policy.generate.n=16",
        "entropy_weight=0.03",
    ),
}


class Curve(TypedDict):
    """One run: (step, share of held-out prompts answered), and the mean reward of each step, in order."""

    accuracy: Sequence[tuple[int, float]]
    reward: Sequence[float]


def kept() -> Mapping[str, Mapping[str, Curve]]:
    """Read the kept curves by flow and seed; none where none was measured."""
    if not KEPT.is_file():
        return {}
    found: Mapping[str, Mapping[str, Curve]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def steps_to(curve: Sequence[Sequence[float]], goal: float = LEARNT) -> int | None:
    """Return the first step at which a curve of (step, accuracy) is at the goal or above.

    >>> steps_to([[0, 0.0], [20, 0.95], [40, 0.5]]), steps_to([[0, 0.1]])
    (20, None)
    """
    return next((int(step) for step, accuracy in curve if accuracy >= goal), None)


def middle(steps: Sequence[int | None]) -> int | None:
    """Return the lower median of step counts, where a run that never got there took longest; None for such a run.

    >>> middle([40, None, 60]), middle([40, None, None]), middle([])
    (60, None, None)
    """
    order = sorted(steps, key=lambda each: (each is None, each or 0))
    return order[(len(order) - 1) // 2] if order else None
