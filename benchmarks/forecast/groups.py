"""Accuracy on groups that inform nothing: each model, then each kind of hardware, is forecast without its own rows.

Not here: which tables there are and how their constants are fitted again (`left_out`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import mean, median
from typing import Any, Literal

from benchmarks.forecast.report import spearman

Axis = Literal["model", "hardware"]
AXES: tuple[Axis, ...] = ("model", "hardware")
DRAWS = 1000
SEED = 0


@dataclass(frozen=True)
class Sample:
    """One published figure with its forecast as shipped and a null model; `case` is what a refit forecasts it from."""

    label: str
    model: str
    hardware: str
    measured: float
    forecast: float
    null: float
    case: Any = None

    def group(self, axis: Axis) -> str:
        """Return the group that it belongs to."""
        return self.model if axis == "model" else self.hardware


Refit = Callable[[Sequence[Sample], Sequence[Sample], Axis], list[float]]
"""Forecast the second samples, which are of one group, with constants fitted to the first alone."""


@dataclass(frozen=True)
class Kind:
    """A kind of figure: its samples, how it is fitted without a group, and a sentence that says what that fits."""

    name: str
    title: str
    unit: str
    samples: tuple[Sample, ...]
    refit: Refit
    fitted: str


@dataclass(frozen=True)
class Accuracy:
    """Sizes of errors as shares of what was measured, and quantiles of the signed ones: 0.1 and 0.9.

    `median_low` and `median_high` hold 90% of the medians when groups are drawn anew.
    """

    median: float
    mean: float
    low: float
    high: float
    median_low: float
    median_high: float
    spearman: float | None


@dataclass(frozen=True)
class Held:
    """The accuracy of a kind: as shipped, and by axis without a group's own rows; None where there is one group."""

    kind: Kind
    shipped: Accuracy
    left_out: dict[Axis, Accuracy | None]
    null: Accuracy | None

    @property
    def worse(self) -> Accuracy:
        """Return the larger of the errors with a group left out; as shipped where no group can be."""
        known = [each for each in self.left_out.values() if each is not None]
        return max(known, key=lambda each: each.median) if known else self.shipped


def held(kind: Kind) -> Held:
    """Return the accuracy of a kind by both axes; the null model is scaled without the row's own model."""
    shipped = accuracy(kind.samples, [each.forecast for each in kind.samples], "model")
    left_out = {axis: _left_out(kind, axis) for axis in AXES}
    axis: Axis = "model" if left_out["model"] is not None else "hardware"
    null = forecasts_left_out(_as_null(kind.samples), scaled, axis)
    return Held(kind, shipped, left_out, None if null is None else accuracy(kind.samples, null, axis))


def _left_out(kind: Kind, axis: Axis) -> Accuracy | None:
    found = forecasts_left_out(kind.samples, kind.refit, axis)
    return None if found is None else accuracy(kind.samples, found, axis)


def forecasts_left_out(samples: Sequence[Sample], refit: Refit, axis: Axis) -> list[float] | None:
    """Return the forecast of each sample from the samples of all other groups; None where there is only one group."""
    groups = sorted({each.group(axis) for each in samples})
    if len(groups) < 2:
        return None
    found = dict[int, float]()
    for group in groups:
        places = [place for place, each in enumerate(samples) if each.group(axis) == group]
        kept = [each for each in samples if each.group(axis) != group]
        found |= zip(places, refit(kept, [samples[place] for place in places], axis), strict=True)
    return [found[place] for place in range(len(samples))]


def _as_null(samples: Sequence[Sample]) -> list[Sample]:
    return [Sample(each.label, each.model, each.hardware, each.measured, each.null, each.null) for each in samples]


def scaled(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
    """Return the forecasts as shipped times one scale: the median over the kept groups of each group's median."""
    logs = dict[str, list[float]]()
    for each in kept:
        logs.setdefault(each.group(axis), []).append(log(each.measured / each.forecast))
    scale = exp(median(median(each) for each in logs.values()))
    return [each.forecast * scale for each in left]


def accuracy(samples: Sequence[Sample], forecasts: Sequence[float], axis: Axis) -> Accuracy:
    """Return the errors of forecasts, with an interval of the median from groups that are drawn anew."""
    signed = [forecast / each.measured - 1 for each, forecast in zip(samples, forecasts, strict=True)]
    sizes = sorted(abs(each) for each in signed)
    medians = _medians([each.group(axis) for each in samples], [abs(each) for each in signed])
    return Accuracy(
        median=median(sizes),
        mean=mean(sizes),
        low=quantile(signed, 0.1),
        high=quantile(signed, 0.9),
        median_low=quantile(medians, 0.05),
        median_high=quantile(medians, 0.95),
        spearman=spearman([(each.measured, forecast) for each, forecast in zip(samples, forecasts, strict=True)]),
    )


def _medians(names: Sequence[str], sizes: Sequence[float]) -> list[float]:
    """Return the medians of DRAWS sets of as many groups, each drawn with replacement; the same ones each time."""
    groups = dict[str, list[float]]()
    for name, size in zip(names, sizes, strict=True):
        groups.setdefault(name, []).append(size)
    drawing, every = random.Random(SEED), [groups[name] for name in sorted(groups)]
    return [median(size for group in drawing.choices(every, k=len(every)) for size in group) for _ in range(DRAWS)]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all do not exceed, on the line between two.

    >>> quantile([1.0, 2.0, 3.0], 0.5), quantile([1.0, 2.0], 0.25)
    (2.0, 1.25)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


# ---------------------------------------------------------------------------------------------------------- as text

HEADER = (
    "what", "rows", "models, devices", "in sample", "model left out", "hardware left out", "80 % of errors", "Spearman",
    "null model",
)  # fmt: skip


def table_text(found: Sequence[Held]) -> str:
    """Return the accuracies as a table of Markdown, and below it what was fitted without a group.

    A cell is the median and the mean; after a median with a group left out, the interval that holds 90% of them when
    groups are drawn anew. The last columns are of the model left out, or of the hardware where there is one model.
    """
    rows = [HEADER, ("---",) * len(HEADER), *map(_cells, found)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- {each.kind.title}: {each.kind.fitted}." for each in found)])


def _cells(found: Held) -> tuple[str, ...]:
    kind, worse = found.kind, found.worse
    counts = ", ".join(str(len({each.group(axis) for each in kind.samples})) for axis in AXES)
    shown = found.left_out["model"] or found.left_out["hardware"] or found.shipped
    return (
        f"{kind.title} [{kind.unit}]",
        f"{len(kind.samples):,}",
        counts,
        f"{_percent(found.shipped.median)}, {_percent(found.shipped.mean)}",
        *(_left_out_cell(found.left_out[axis]) for axis in AXES),
        f"{worse.low:+.0%} to {worse.high:+.0%}",
        "" if shown.spearman is None else f"{shown.spearman:.2f}",
        "" if found.null is None else f"{_percent(found.null.median)}, {_percent(found.null.mean)}",
    )


def _left_out_cell(found: Accuracy | None) -> str:
    if found is None:
        return "one group"
    return (
        f"{_percent(found.median)} ({_percent(found.median_low)} to {_percent(found.median_high)}), "
        f"{_percent(found.mean)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
