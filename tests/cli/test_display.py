"""What a run shows as it goes, at 80 columns and wider; nothing of a response moves the cursor or hides text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from flowgraph import Graph
from flowgraph.app.planning.flow_inputs import read_inputs
from flowgraph.app.request import Workload
from flowgraph.cli import display as shown
from flowgraph.cli.display import Display
from flowgraph.language.region import Observations
from flowgraph.language.values import Measure
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.sampled_response import SampledResponse, sampled_names, sampled_response
from tests.cli.small_run import quietly

HOSTILE = (
    "\x1b[2J\x1b[1;1HBOO\r\x08\x9b31m\u202egnp\u2066\u200b\u2028\x00\U000e0041\ud800 "
    "❤\ufe0f 漢字 e\u0301\u0301\u0301\u0301\n\tend"
)
OURS = re.compile(r"\x1b\[(?:\?25[lh]|[\d;]*[mAK])|\r(?=\x1b\[2K)")  # colours and the movements of rich's own live view


class Fixed:
    """Places that give the same response to whoever asks."""

    def __init__(self, text: str) -> None:
        self.text = text

    def apply(self, function: Callable[..., Any], items: Sequence[Any], *rest: Any) -> Callable[[], SampledResponse]:
        """Return the response."""
        return lambda: SampledResponse(prompt=self.text, response=self.text, scores={f"score{self.text}": 1.0})


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return the graph of GRPO."""
    return read_inputs(Workload(flow="grpo")).graph


def step_of(graph: Graph, value: float, text: str) -> StepResult:
    """Return the result of a step whose headline metrics all are a value, and whose responses all are a text."""
    observed = Observations(seconds={"policy.generate": 1.25, "score": 0.5})
    for node in graph.all_nodes:
        observed.add(node.name, [Measure(metric.name, value, 1) for metric in node.op.metrics])
    items: Mapping[str, Any] = dict.fromkeys(sampled_names(graph))
    places: Any = Fixed(text)
    return StepResult(items, observed, places)


def views(graph: Graph, columns: int, text: str, steps: int = 12) -> tuple[list[str], str]:
    """Return the lines of the view after some steps of 3 s, and all that was written to the terminal."""
    now, written, plain = [0.0], io.StringIO(), io.StringIO()
    console = Console(file=written, force_terminal=True, width=columns, height=40, color_system="standard")
    with Display(graph, 300, console, clock_s=lambda: now[0]) as display:
        for step in range(steps):
            now[0] += 3
            display.stepped(step, step_of(graph, step / 8, text), 3.0)
        Console(file=plain, width=columns, height=40, force_terminal=False).print(display)
    return [line.rstrip() for line in plain.getvalue().splitlines()], written.getvalue()


@pytest.mark.parametrize("columns", [80, 160])
def test_the_view_has_a_bar_the_time_left_the_speeds_the_headlines_and_a_response(graph: Graph, columns: int) -> None:
    lines, _ = views(graph, columns, "7 is prime " * 60)
    assert re.fullmatch(r"grpo  [━╺ ]{10,}  step 12/300    4%", lines[0])
    assert re.fullmatch(r"\S+ tokens/s  0\.333 steps/s  ETA 14m 24s  elapsed 36s", lines[1])
    assert lines[2].split() == ["metric", "now", "curve", "unit"]
    assert any(re.match(r"reward +1\.3750  ▁\S+█", line) for line in lines)
    assert "policy.generate 1.250 s  score 0.500 s" in lines
    at = lines.index(next(line for line in lines if line.startswith("sample of step 11")))
    assert lines[at].endswith(" 1.000")
    assert lines[at + 1].startswith("  prompt    7 is prime") and lines[at + 1].endswith("…")
    assert lines[at + 2].startswith("  response  7 is prime") and lines[-1].endswith("…")
    assert len(lines) == at + 5, "the height does not depend on the response"
    longest = max(map(cell_len, lines))
    assert longest <= columns and (longest > 80) == (columns > 80), "a wider terminal is used"


def test_a_short_response_takes_as_many_lines(graph: Graph) -> None:
    assert len(views(graph, 80, "42")[0]) == len(views(graph, 80, "word " * 900)[0])


@pytest.mark.parametrize("columns", [80, 160])
def test_nothing_of_a_response_moves_the_cursor_or_hides_text(graph: Graph, columns: int) -> None:
    lines, written = views(graph, columns, HOSTILE * 3)
    text = OURS.sub("", written)
    assert not [each for each in text if not (each == "\n" or each.isprintable())]
    assert "\ufe0f" not in text and not re.search("[\u0300-\u036f]{3}", text)
    assert r"\x1b[2J\x1b[1;1HBOO" in "\n".join(lines), "it is shown as letters"
    assert max(map(cell_len, lines)) <= columns


def test_a_response_is_taken_only_after_the_next_step_and_not_after_a_failure(graph: Graph) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Display(graph, 3, console, clock_s=lambda: 5.0) as display:
        display.stepped(0, step_of(graph, 1.0, "first"), 1.0)
        assert display.shown is None
    assert display.shown is not None and display.shown.step == 1

    failed = Display(graph, 3, Console(file=io.StringIO(), force_terminal=True, width=80), clock_s=lambda: 5.0)
    with pytest.raises(RuntimeError), failed:
        failed.stepped(0, step_of(graph, 1.0, "first"), 1.0)
        raise RuntimeError
    assert failed.shown is None


def test_a_pipe_gets_lines_without_a_response(graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Display(graph, 4, Console(file=io.StringIO(), force_terminal=False), clock_s=lambda: now[0]) as display:
        for step in range(4):
            now[0] += 4
            display.stepped(step, step_of(graph, 0.5, HOSTILE), 4.0)
    lines = capsys.readouterr().err.splitlines()
    assert [re.match(r"step \d/4  ", line) is not None for line in lines] == [True] * 3, (
        "one now and then, and the last"
    )
    assert lines[0].endswith("0.25 steps/s  ETA 12s") and lines[-1].startswith("step 4/4  ")
    assert lines[-1].endswith("0.25 steps/s")


def test_the_response_of_a_row_has_the_scores_of_that_row(tmp_path: Path) -> None:
    import pyarrow as pa

    prompts = [[{"role": "system", "content": "s"}, {"role": "user", "content": f"q{row}"}] for row in range(3)]
    rollout = pa.table({"text": ["a", "b", "c"], "columns.prompt": prompts})
    scores = pa.table({"value": [0.0, 0.5, 1.0]})
    found = sampled_response([rollout, scores], ["score"], 4)
    assert found == SampledResponse(prompt="q1", response="b", scores={"score": 0.5})
    assert sampled_response([rollout.select(["columns.prompt"])], [], 0) is None
    assert sampled_response([rollout.slice(0, 0)], [], 0) is None
    assert sampled_response([rollout.append_column("scores", [[1.0, 2.0, 3.0]])], [], 0) == SampledResponse(
        prompt="q0", response="a", scores={"score": 1.0}
    )


def test_a_real_run_shows_a_response_with_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    terminal = Console(file=written, force_terminal=True, width=80, height=40)
    monkeypatch.setattr(shown, "Display", lambda graph, steps, start: Display(graph, steps, terminal, start=start))
    quietly(tmp_path, "run", "grpo", "--cluster", "1xcpu", "--steps", "2", "--batch", "4", "--eval-every", "0")
    text = OURS.sub("", written.getvalue())
    assert re.search(r"grpo  ━+  step 2/2  100%", text)
    assert re.search(r"sample of step \d  score [01]\.\d{3}\n  prompt    \d{3}\n  response  ", text)
