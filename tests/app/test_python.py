"""The Python API: what it returns is what the command line prints, for flows by name, in a script and in a cell."""

from __future__ import annotations

import inspect
import json
import linecache
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowgraph as fg
from flowgraph import app
from flowgraph.app.request import PARTS
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, SettingError, UsageError
from flowgraph.language.flow import Flow
from tests.cli.small_run import quietly

H100: dict[str, Any] = {"cluster": "2x8xh100", "model": "policy=Qwen/Qwen3-8B", "response_tokens": "mean=1k,p99=4k"}
SMALL: dict[str, Any] = {"cluster": "1xcpu", "batch": 2, "settings": {"policy.generate.n": 2}}


SOON: dict[str, Any] = H100 | {"staleness": "soon"}


def options(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow[..., Any]:
    """Return a flow that a cell of a notebook defines: it is in no file."""
    monkeypatch.chdir(tmp_path)
    source = (Path(__file__).parents[2] / "examples" / "gpg.py").read_text().replace("def gpg(", "def mine(")
    name, space = "<ipython-input-1-cell>", dict[str, Any]()
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    exec(compile(source, name, "exec"), space)
    flow: Flow[..., Any] = space["mine"]
    return flow


def shown(thing: Any) -> dict[str, str]:
    """Return what a notebook shows."""
    bundle: dict[str, str] = thing._repr_mimebundle_()
    return bundle


def timeless(data: Any) -> Any:
    return data | {"search": {name: value for name, value in data["search"].items() if name != "search_s"}}


def test_a_plan_is_what_the_command_line_prints_as_json(tmp_path: Path) -> None:
    result = fg.plan("grpo", **H100)
    printed = json.loads(quietly(tmp_path, "plan", "grpo", *options(H100), "--json"))
    assert timeless(json.loads(json.dumps(result.data()))) == timeless(printed)
    assert list(result.notes) == printed["notes"]
    assert result.notes[0] == "assuming prompts of 512 tokens; set --prompt-tokens to change it"
    assert repr(result).startswith("<plan of grpo on 2x8xh100: 16 devices, ")
    assert {"text/plain"} < set(shown(result))


@pytest.mark.slow(group="commands")
def test_what_is_asked_of_a_plan_takes_the_plan_its_file_or_the_result(tmp_path: Path) -> None:
    result = fg.plan("grpo", **H100)
    file = result.save(tmp_path / "plan.json")
    for each in (result, result.plan, file, str(file)):
        assert app.explain(each).data() == app.explain(file).data()
        assert app.simulate(each).period_s == result.step_s
        assert app.export(each, "verl").files == app.export(file, "verl").files
    assert len(app.compare(result, result.plan).plans) == 2
    assert fg.plan("grpo", plan=result).step_s == pytest.approx(result.step_s)
    assert fg.check("grpo", plan=file).faults == ()


def test_a_flow_of_a_cell_is_checked_planned_drawn_and_run_here(mine: Flow[..., Any]) -> None:
    assert fg.check(mine, cluster="1xcpu", batch=2).faults == ()
    planned = fg.plan(mine, **SMALL)
    assert planned.plan.flow == "mine" and planned.plan.assumed is not None and planned.plan.assumed.flow == "mine"
    assert fg.draw(mine).svg().startswith("<svg")
    assert "image/svg+xml" in shown(fg.draw(planned))
    seen = list[int]()
    result = fg.run(
        mine, plan=planned, steps=2, eval_every=0, out="out", settings=SMALL["settings"], listeners=[Seen(seen)]
    )
    assert (result.status, result.steps_done, seen) == ("finished", 2, [0, 1])
    assert [line["step"] for line in result.metrics] == [0, 1]
    assert set(result.weights) == {"policy"}
    assert fg.resume(result, flow=mine, steps=3).steps_done == 3
    scored = fg.evaluate(result, rows=2, cluster="1xcpu")
    assert scored.report is not None and repr(scored).startswith("<evaluation of out/weights/policy: score ")
    assert len(fg.generate(result, ["12", "3"], cluster="1xcpu").responses) == 2


class Seen:
    """Notes each step."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def stepped(self, step: int, ran: object, seconds: float) -> None:
        self.steps.append(step)

    def checked(self, step: int, observed: object, seconds: float) -> None:
        """Take no notice."""


def test_on_ray_a_flow_that_is_in_no_file_is_refused_with_a_hint(mine: Flow[..., Any]) -> None:
    with pytest.raises(UsageError) as caught:
        fg.run(mine, **SMALL, runtime="ray", steps=1)
    assert str(caught.value) == (
        "mine: is defined in this process, and the workers of Ray find flows by their names\n"
        "  hint: write it into a file: run(\"my.py\"); or run it here, on one device: cluster='1xcpu'"
    )


WRONG: tuple[tuple[Callable[[], object], type[FlowError], str], ...] = (
    (lambda: fg.plan("grpo", **SOON), UsageError, "staleness= (--staleness): `soon` is no"),
    (lambda: fg.plan("grpo", batch=-1), SettingError, "batch= (--batch): batch=-1: Input should be greater"),
    (lambda: fg.plan("grpo", settings={"policy.generate.m": 2}), FlowError, "settings= (--set): "),
    (lambda: fg.plan("grpo", plan="a.json", cluster="1xcpu"), UsageError, "plan= (--plan a.json): --cluster has no"),
    (lambda: fg.draw("grpo", picture="flows"), UsageError, "picture= (--picture): no picture `flows`"),  # pyright: ignore[reportArgumentType]
    (lambda: fg.draw("grpo", steps=0), SettingError, "steps= (--steps): steps=0: should be a whole number from 1"),
    (
        lambda: fg.draw(Plan.model_construct(flow="grpo"), batch=8),
        UsageError,
        "plan of grpo: a plan already defines its model, data and cluster",
    ),
    (lambda: fg.evaluate("tiny", split="some"), UsageError, "split= (--split): no split `some`"),  # pyright: ignore[reportArgumentType]
    (lambda: fg.plan("nothing"), FlowError, "no shipped flow `nothing`"),
    (lambda: app.make_request(batches=2), UsageError, "batches=: no argument `batches`\n  hint: did you mean `batch`?"),
)


@pytest.mark.parametrize("place", range(len(WRONG)))
def test_what_is_wrong_is_an_error_of_ours_in_words_of_the_argument(place: int) -> None:
    call, kind, text = WRONG[place]
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_every_argument_is_a_field_of_the_request_or_of_the_call_alone() -> None:
    fields = {name for part in PARTS.values() for name in part.model_fields}
    own = {"say", "listeners", "progress", "measured", "measured_on", "what", "picture", "steps", "unfold", "run"}
    for call in (fg.check, fg.plan, fg.run, fg.resume, fg.evaluate, fg.generate, fg.draw, app.import_run):
        names = set(inspect.signature(call).parameters)
        assert names - fields - own <= {"command", "device", "model"}, call


SCRIPT = (
    "import flowgraph\n"
    "from examples.grpo import grpo\n"
    "planned = flowgraph.plan(grpo, cluster='1xcpu', batch=2, settings={'policy.generate.n': 2})\n"
    "result = flowgraph.run(grpo, plan=planned, steps=1, eval_every=0, out='out')\n"
    "print(result.status, result.folder, planned.plan.assumed.flow)\n"
)


@pytest.mark.processes
def test_a_script_plans_and_runs_and_nothing_else_is_printed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, runpy; sys.path.insert(0, {root!r}); runpy.run_path('script.py')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("finished out grpo\n", "")
