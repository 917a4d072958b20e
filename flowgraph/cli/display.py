"""The live display of a run: progress, speed, headline metrics with curves, and one sample response.

On a terminal, a view on stderr is updated in place, and its height changes only when the first response arrives;
elsewhere, a line is printed now and then. Responses and names go through `one_line`, so they cannot move the cursor.
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flowgraph.app.running.run_report import eval_headlines, short_metric_names
from flowgraph.cli.output import escape_controls, say
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.terminal.sparkline import sparkline
from flowgraph.language.graph import Graph
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.run_facts import is_warning
from flowgraph.runtime.record.run_folder import declared_metrics, token_sum
from flowgraph.runtime.record.sampled_response import (
    CHARACTERS_AT_MOST,
    SampledResponse,
    sampled_names,
    sampled_response,
)

CURVE_CELLS = (8, 64)  # fewest and most
BAR_CELLS = (10, 60)
RESPONSE_LINES = 3
LINE_EVERY_S = 5.0
SAMPLE_EVERY_S = 2.0
WINDOW_STEPS = 20  # whose mean speed tells how long the rest takes

_SELECTORS = re.compile("[\ufe00-\ufe0f]")  # they make some characters wider than they are counted


@dataclass(frozen=True)
class _Shown:
    step: int
    sample: SampledResponse


class Display:
    """A context manager that displays a run of `steps` steps, by default on stderr; `start` of these are done."""

    def __init__(
        self,
        graph: Graph,
        steps: int,
        console: Console | None = None,
        *,
        start: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.graph, self.steps, self.console = graph, steps, console or Console(stderr=True)
        self.metrics = {name: metric for name, metric in declared_metrics(graph).items() if metric.headline}
        self.curves = defaultdict[str, list[float]](list)
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []
        self.step, self.tokens_per_s, self.step_s = start, 0.0, 0.0
        self.shown: _Shown | None = None
        self._clock_s, self._started_s = clock_s, clock_s()
        self._ends = deque[tuple[int, float]](maxlen=WINDOW_STEPS + 1)  # steps done, and when
        self._names = sampled_names(graph)
        self._pending: tuple[int, Callable[[], SampledResponse | None]] | None = None
        self._printed_s, self._sampled_s, self._up_to_date = float("-inf"), float("-inf"), True
        self._live = Live(self, console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            if error[:1] in ((), (None,)):  # else the pending sample may never come
                self._take_sample()
            self._live.refresh()
            self._live.stop()
        elif not self._up_to_date:
            say(self.line(), file=sys.stderr)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Record the results of a step that took `seconds`, and update the display; `step` counts from 0."""
        for name, mean in ran.observed.means().items():
            self.curves[name].append(mean)
        self.warnings = [name.partition(".")[2] for name in ran.observed.means() if is_warning(name)]
        self.step, self.step_s, self.seconds = step + 1, seconds, dict(ran.observed.seconds)
        self.tokens_per_s = token_sum(self.graph, ran.observed) / seconds
        self._ends.append((self.step, self._clock_s()))
        if self.console.is_terminal:
            self._take_sample()
            now_s = self._clock_s()
            if self._pending is None and self._names and now_s - self._sampled_s >= SAMPLE_EVERY_S:
                self._sampled_s = now_s
                sample = ran.apply(sampled_response, self._names, self._names[1:], self.step)
                self._pending = self.step, sample  # is taken after the next step, when this one has surely finished
        self._show(force=False)

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Record the metrics of an evaluation on held-out data, and update the display.

        `step` and `seconds` are unused.
        """
        for name, mean in result.metrics.items():
            self.curves[name].append(mean)
        self._show(force=True)

    @property
    def steps_per_s(self) -> float:
        """Return the mean steps per second over the last 20 steps at most; 0 before the first step.

        The time of saves and checks between these steps is included. After one step, only its own seconds count.
        """
        (first, start_s), (last, end_s) = (self._ends[0], self._ends[-1]) if self._ends else ((0, 0.0), (0, 0.0))
        if last > first and end_s > start_s:
            return (last - first) / (end_s - start_s)
        return 1 / self.step_s if self.step_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Return the estimated seconds until the last step ends; None before the first step."""
        return (self.steps - self.step) / self.steps_per_s if self.steps_per_s else None

    def _take_sample(self) -> None:
        if self._pending is not None:
            step, result = self._pending
            self._pending, sample = None, result()
            self.shown = self.shown if sample is None else _Shown(step, sample)

    def _show(self, force: bool) -> None:
        if self.console.is_terminal:
            return  # it is drawn anew four times a second
        now_s = self._clock_s()
        self._up_to_date = force or now_s - self._printed_s > LINE_EVERY_S
        if self._up_to_date:
            self._printed_s = now_s
            say(self.line(), file=sys.stderr)

    def line(self) -> str:
        """Return the progress, headline metrics and speed of the run in one line."""
        names = short_metric_names(name for name, _ in self._headlines())
        metrics = [f"{names[name]} {values[-1]:.3f}" for name, values in self._headlines() if values]
        return f"step {self.step}/{self.steps}  " + "  ".join([*metrics, *self._speeds(), *self._warned()])

    def _warned(self) -> list[str]:
        return [f"warnings: {', '.join(self.warnings)}"] if self.warnings else []

    def _speeds(self) -> Iterator[str]:
        yield f"{self.tokens_per_s:,.0f} tokens/s"
        if self.steps_per_s:
            yield f"{self.steps_per_s:.3g} steps/s" if self.steps_per_s >= 0.1 else f"{1 / self.steps_per_s:.1f} s/step"
        if self.left_s and self.step < self.steps:
            yield f"ETA {show_duration(self.left_s)}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = options.max_width
        head = one_line(self.graph.name, columns // 3)
        count = f"step {self.step}/{self.steps}  {self.step / max(self.steps, 1):4.0%}"
        width = max(BAR_CELLS[0], min(BAR_CELLS[1], columns - Text(head).cell_len - len(count) - 4))
        progress = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=max(self.steps, 1), completed=self.step, width=width)
        progress.add_row(Text(head, style="bold"), bar, Text(count))
        elapsed = f"elapsed {show_duration(self._clock_s() - self._started_s)}"
        speeds = "  ".join([*self._warned(), *self._speeds(), elapsed])
        head_line = _cut(speeds, columns, "bold yellow" if self.warnings else "")
        slowest = sorted(self.seconds.items(), key=lambda item: -item[1])[:5]
        nodes = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in slowest)
        sample = [] if self.shown is None else _sample_lines(self.shown, columns)
        yield Group(progress, head_line, self._metrics(columns), _cut(nodes, columns, "dim"), *sample)

    def _metrics(self, columns: int) -> Table:
        names = short_metric_names(name for name, _ in self._headlines())
        rows = [
            (one_line(names[name], columns // 3), values, self.metrics[name].unit if name in self.metrics else "share")
            for name, values in self._headlines()
        ]
        names_cells = max((Text(name).cell_len + Text(clean(unit)).cell_len for name, _, unit in rows), default=0)
        cells = max(CURVE_CELLS[0], min(CURVE_CELLS[1], columns - names_cells - 16))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("metric", "now", "curve", "unit"):
            table.add_column(head, justify="right" if head == "now" else "left", no_wrap=True, overflow="ellipsis")
        for name, values, unit in rows:
            now = f"{values[-1]:.4f}" if values else ""
            table.add_row(Text(name), now, sparkline(values, cells), Text(clean(unit) if unit else ""))
        return table

    def _headlines(self) -> Sequence[tuple[str, list[float]]]:
        names = (*eval_headlines(self.curves), *self.metrics)
        return [(name, self.curves[name]) for name in names if self.curves[name] or name in self.metrics]


def _sample_lines(sampled: _Shown, columns: int) -> Iterator[Text]:
    scores = "  ".join(f"{one_line(name, 24)} {score:.3f}" for name, score in sampled.sample.scores.items())
    yield _cut(f"sample of step {sampled.step}  {scores}", columns, "bold")
    yield _cut(f"  prompt    {one_line(sampled.sample.prompt)}", columns)
    lines = chop_cells(one_line(sampled.sample.response), max(columns - 12, 1)) or [""]
    cut = [*lines[:RESPONSE_LINES], *[""] * (RESPONSE_LINES - len(lines))]
    if len(lines) > RESPONSE_LINES:
        cut[-1] = f"{cut[-1][:-1]}…"
    for place, line in enumerate(cut):
        yield _cut(f"{'  response  ' if place == 0 else ' ' * 12}{line}", columns)


def _cut(text: str, columns: int, style: str = "") -> Text:
    line = Text(escape_controls(text).replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis")
    line.truncate(columns, overflow="ellipsis")
    return line


def one_line(text: str, characters: int = CHARACTERS_AT_MOST) -> str:
    r"""Return text as one line that is safe to print, with each run of white space as one space.

    Control characters are escaped. A line of more than `characters` characters is cut, and ends in an ellipsis.

    >>> one_line("two\nlines\x1b[2J")
    'two lines\\x1b[2J'
    """
    line = escape_controls(_SELECTORS.sub("", " ".join(text.split())))
    return clean(line, characters) if line else ""


def show_duration(seconds: float) -> str:
    """Return a duration in seconds as text with its two largest units; seconds are rounded, later units cut.

    >>> show_duration(7.2), show_duration(200), show_duration(3900), show_duration(200000)
    ('7s', '3m 20s', '1h 05m', '2d 7h')
    """
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    if not minutes:
        return f"{rest_s}s"
    if not hours:
        return f"{minutes}m {rest_s:02d}s"
    return f"{hours}h {rest_minutes:02d}m" if hours < 24 else f"{hours // 24}d {hours % 24}h"
