"""Measured seconds of nodes, tasks and steps: given by a user, or recorded by a run of this project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any, Final

from flowgraph.errors import DataError, UsageError

STEP: Final = "step"
"""The name of a whole step among timings; it takes precedence over a node of this name."""

SYNC: Final = "sync"
"""The name of all weight syncs of a step among timings."""


@dataclass(frozen=True)
class Timing:
    """Measured seconds of one or more consecutive nodes or tasks of a step; `label` describes them in texts."""

    label: str
    seconds: float
    names: tuple[str, ...]


def given_timings(texts: Sequence[str], where: str) -> Iterator[Timing]:
    """Yield a timing for each text `NODE=SECONDS`; `where` is the plan's file, for errors.

    Raises UsageError without texts, for a text of another form, and for a name that is given twice; DataError for
    seconds that are not a finite number above 0.
    """
    if not texts:
        what = "contains no measured seconds"
        hint = "a plan takes --measured policy.generate=310; a log takes --plan PLAN.json"
        raise UsageError(what, where=f"calibrate {where}", hint=hint)
    names = [text.partition("=")[0] for text in texts]
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            equals, seconds = "", 0.0
        if not equals or not name:
            raise UsageError("should be NODE=SECONDS", where=f"--measured {text}", hint="policy.generate=310")
        if names.count(name) > 1:
            raise UsageError(f"`{name}` is given twice", where=f"--measured {text}", hint="leave one of them out")
        refuse_no_seconds(f"--measured {name}", seconds)
        yield Timing(name, seconds, (name,))


def recorded_timings(lines: Sequence[Any], where: str) -> Iterator[Timing]:
    """Yield a timing for each node: its median seconds over the steps of a run, without the first step (a warm-up).

    A node that only the first step has keeps its seconds there. `lines` are the parsed lines of the run's metrics; a
    line without seconds of nodes is skipped. `where` is the file of the metrics, for errors. Raises DataError for a
    line or table that is not a mapping, and for seconds that are not a finite number above 0.

    >>> steps = [{"time": {"nodes_s": {"policy.update": seconds}}} for seconds in (9.0, 2.0, 3.0, 2.5)]
    >>> list(recorded_timings(steps, "metrics.jsonl"))
    [Timing(label='policy.update', seconds=2.5, names=('policy.update',))]
    """
    tables = list[Mapping[str, float]]()
    for number, line in enumerate(lines, 1):
        time = line.get("time", {}) if isinstance(line, Mapping) else None
        nodes = time.get("nodes_s", {}) if isinstance(time, Mapping) else None
        if not isinstance(nodes, Mapping):
            raise DataError.unusable(f"{where}:{number}", "has no table of seconds by node, as `time.nodes_s`")
        for name, seconds in nodes.items():
            refuse_no_seconds(f"{where}:{number} {name}", seconds)
        tables.append(nodes)
    for name, seconds in medians([table for table in tables if table]).items():
        yield Timing(name, seconds, (name,))


def medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median seconds of each name over all steps except the first, which is a warm-up.

    A name that only the first step has keeps its seconds there; a name that a step lacks is not counted in that step.

    >>> medians([{"a": 9.0, "c": 4.0}, {"a": 1.0, "b": 2.0}, {"a": 3.0}])
    {'a': 2.0, 'c': 4.0, 'b': 2.0}
    """
    names = dict.fromkeys(name for step in steps for name in step)
    values = {name: [step[name] for step in steps[1:] if name in step] for name in names}
    return {name: median(later) if later else steps[0][name] for name, later in values.items()}


def refuse_no_seconds(label: str, value: Any) -> None:
    """Raise DataError unless `value` is a finite number above 0; `label` names the value in the error."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value) and value > 0:
            return
    except OverflowError:
        pass
    text = repr(value) if isinstance(value, str) else str(value)
    printed = text if len(text) <= 40 else f"{text[:40]}…"
    raise DataError.out_of_range(label, "seconds", printed, "any number above 0")
