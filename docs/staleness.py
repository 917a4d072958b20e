"""What the page about staleness shows: the accuracy of runs on stale rows, with intervals over seeds, and its picture.

All of it is read from what `benchmarks/staleness.py` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.curves import middle, steps_to
from benchmarks.staleness import Accuracy, kept_runs
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, LinearScale, Rect, polyline
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, polygon, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, svg_document
from flowgraph.diagrams.write.svg.text_lines import TextLine

LEARNED_BY = 200  # the step from which accuracy is averaged
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # of a two-sided interval of 95 %, by the number of seeds
PANEL_HEIGHT, GAP, LEFT, TOP, BOTTOM = 170.0, 16.0, 34.0, 30.0, 26.0


@dataclass(frozen=True)
class StalenessRow:
    """The runs of one flow at one staleness, a curve a seed; shares are of the held-out prompts."""

    flow: str
    staleness: int
    curves: tuple[Accuracy, ...]

    @property
    def learned(self) -> int | None:
        """Return the median step at which accuracy was 0.9 first; None if the median run never reached it."""
        return middle([steps_to(curve) for curve in self.curves])

    @property
    def never(self) -> int:
        """Return the number of runs that never reached 0.9."""
        return sum(steps_to(curve) is None for curve in self.curves)

    @property
    def late_accuracy(self) -> tuple[float, float]:
        """Return the mean accuracy from step 200 on, and half of its interval over seeds."""
        return mean_and_half([fmean(share for step, share in curve if step >= LEARNED_BY) for curve in self.curves])

    @property
    def late_text(self) -> str:
        """Return the mean accuracy from step 200 on with half of its interval, which a single run does not have."""
        mean, half = self.late_accuracy
        return f"{mean:.2f} ± {half:.2f}" if len(self.curves) > 1 else f"{mean:.2f}"

    @property
    def lowest(self) -> float:
        """Return the lowest accuracy of any run from step 200 on."""
        return min(share for curve in self.curves for step, share in curve if step >= LEARNED_BY)


def mean_and_half(shares: Sequence[float]) -> tuple[float, float]:
    """Return a mean and half of its 95 % interval (Student's t), which is 0 for a single share.

    >>> mean_and_half([0.5])
    (0.5, 0.0)
    """
    half = STUDENT_T[len(shares)] * stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    return fmean(shares), half


def staleness_rows() -> list[StalenessRow]:
    """Return the kept runs by flow and staleness."""
    cases = dict[tuple[str, int], list[Accuracy]]()
    for name, curve in kept_runs().items():
        flow, staleness, _ = name.split(", ")
        cases.setdefault((flow, int(staleness)), []).append(curve)
    return [StalenessRow(flow, staleness, tuple(curves)) for (flow, staleness), curves in sorted(cases.items())]


def staleness_svg(rows: Sequence[StalenessRow]) -> str:
    """Draw the accuracy by step: a panel for each case with its mean over seeds, the interval, and each seed, thin."""
    flows = list(dict.fromkeys(row.flow for row in rows))
    steps = sorted({row.staleness for row in rows})
    width = (WIDTH - 2 * MARGIN - (len(steps) - 1) * GAP) / len(steps)
    panels = list[Mark]()
    for row in rows:
        left = MARGIN + steps.index(row.staleness) * (width + GAP)
        top = TITLE_HEIGHT + flows.index(row.flow) * (PANEL_HEIGHT + GAP)
        panels.append(group("panel", *panel_marks(row, Rect(left, top, width, PANEL_HEIGHT))))
    title = "Held-out accuracy by step: mean over seeds, with its interval of 95 %"
    about = " ".join(f"{row.flow}, staleness {row.staleness}: {row.late_accuracy[0]:.2f} at the end." for row in rows)
    height = TITLE_HEIGHT + len(flows) * (PANEL_HEIGHT + GAP) + MARGIN
    return svg_document("curves", Curves(title, (), about), panels, ALONE, height=height)


def panel_marks(row: StalenessRow, cell: Rect) -> Iterator[Mark]:
    """Yield the marks of a case's panel: its axes, the interval as a band, each seed, and the mean."""
    area = Rect(cell.left + LEFT, cell.top + TOP, cell.width - LEFT, cell.height - TOP - BOTTOM)
    by_step = {step: [share for _, share in shares] for step, shares in columns(row.curves)}
    across = LinearScale(area.left, area.right, min(by_step), max(by_step))
    up = LinearScale(area.bottom, area.top, 0.0, 1.0)
    yield text_mark(TextLine(cell.left, area.top - 12, f"{row.flow}, {row.staleness} old", "strong"))
    for share in (0.0, 0.5, 1.0):
        yield line("grid", (area.left, up.at(share)), (area.right, up.at(share)))
        yield text_mark(TextLine(area.left - 6, up.at(share) + 4, f"{share:g}", "small muted", "end"))
    for step, anchor in ((min(by_step), "start"), (max(by_step), "end")):
        yield text_mark(TextLine(across.at(step), area.bottom + 16, f"{step:g}", "small muted", anchor))
    means = {step: mean_and_half(shares) for step, shares in by_step.items()}
    upper = [(across.at(step), up.at(min(1.0, mean + half))) for step, (mean, half) in means.items()]
    lower = [(across.at(step), up.at(max(0.0, mean - half))) for step, (mean, half) in means.items()]
    band = polygon("point", [*upper, *reversed(lower)])
    yield Mark(band.tag, {**band.attributes, "fill-opacity": "0.18"})
    for curve in row.curves:
        yield path("curve pale", polyline([(across.at(step), up.at(share)) for step, share in curve]))
    line_of_means = [(across.at(step), up.at(mean)) for step, (mean, _) in means.items()]
    yield path("curve", polyline(line_of_means))
    yield circle("point", line_of_means[-1], 2.5)


def columns(curves: Sequence[Accuracy]) -> Iterator[tuple[int, Sequence[tuple[int, float]]]]:
    """Yield each step with the points of all curves there; all curves have the same steps.

    >>> list(columns([[(0, 0.1)], [(0, 0.3)]]))
    [(0, ((0, 0.1), (0, 0.3)))]
    """
    for points in zip(*curves, strict=True):
        yield points[0][0], points
