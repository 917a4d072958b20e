"""What a run shows as it goes: the metrics its nodes declare as headlines, a curve each, speed, seconds by node.

A terminal gets a live table on stderr; anything else a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowgraph.diagrams.write.terminal.sparkline import sparkline
from flowgraph.language.graph import Graph
from flowgraph.language.region import Observations
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.run_folder import declared_metrics, token_sum

CURVE_CELLS = 32
LINE_EVERY_S = 5.0


class Display:
    """Show a run; a context manager."""

    def __init__(self, graph: Graph, steps: int, console: Console | None = None) -> None:
        self.graph, self.steps, self.console = graph, steps, console or Console(stderr=True)
        self.metrics = {name: metric for name, metric in declared_metrics(graph).items() if metric.headline}
        self.curves = defaultdict[str, list[float]](list)
        self.seconds: dict[str, float] = {}
        self.step, self.speed, self.step_s = 0, 0.0, 0.0
        self._said, self._last_said = 0.0, True
        self._live = Live(console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self._live.update(self.table())
            self._live.stop()
        elif not self._last_said:
            print(self.line(), file=sys.stderr)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Show a step."""
        for name, mean in ran.observed.means().items():
            self.curves[name].append(mean)
        self.step, self.step_s, self.seconds = step + 1, seconds, ran.observed.seconds
        self.speed = token_sum(self.graph, ran.observed) / seconds
        self._show(force=False)

    def checked(self, step: int, observed: Observations, seconds: float) -> None:
        """Show a check on held-out data."""
        for name, mean in observed.means().items():
            if name == "accuracy.accuracy":
                self.curves["eval/accuracy"].append(mean)
        self._show(force=True)

    def _show(self, force: bool) -> None:
        if self.console.is_terminal:
            self._live.update(self.table())
        elif force or time.monotonic() - self._said > LINE_EVERY_S:
            self._said, self._last_said = time.monotonic(), True
            print(self.line(), file=sys.stderr, flush=True)
        else:
            self._last_said = False

    def line(self) -> str:
        """Sum up where the run stands in one line."""
        names = short(name for name, _ in self._shown())
        shown = [f"{names[name]} {values[-1]:.3f}" for name, values in self._shown() if values]
        return f"step {self.step}/{self.steps}  " + "  ".join([*shown, f"{self.speed:,.0f} tokens/s"])

    def table(self) -> Group:
        """Lay out the headline metrics with their curves, and the seconds of each node."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("metric", "now", "curve", "unit"):
            table.add_column(head, justify="right" if head == "now" else "left", no_wrap=True)
        names = short(name for name, _ in self._shown())
        for name, values in self._shown():
            unit = self.metrics[name].unit if name in self.metrics else "share"
            table.add_row(
                Text(names[name]), f"{values[-1]:.4f}" if values else "", sparkline(values, CURVE_CELLS), unit
            )
        slow = sorted(self.seconds.items(), key=lambda item: -item[1])[:5]
        times = "  ".join(f"{name} {seconds:.3f} s" for name, seconds in slow)
        speed = f"{self.step_s:.2f} s a step  {self.speed:,.0f} tokens/s"
        head = f"{self.graph.name}  step {self.step} of {self.steps}  {speed}"
        return Group(Text(head, style="bold"), table, Text(times, style="dim"))

    def _shown(self) -> Sequence[tuple[str, list[float]]]:
        return [
            (name, self.curves[name])
            for name in ("eval/accuracy", *self.metrics)
            if self.curves[name] or name in self.metrics
        ]


def short(names: Iterable[str]) -> dict[str, str]:
    """Give metrics their names without their nodes', but where two would be the same.

    >>> short(["policy.update.loss", "critic.update.loss", "eval/accuracy", "score.reward"]).values()
    dict_values(['policy.update.loss', 'critic.update.loss', 'eval/accuracy', 'reward'])
    """
    last = {name: name.rpartition(".")[2] for name in names}
    times = Counter(last.values())
    return {name: each if times[each] == 1 else name for name, each in last.items()}
