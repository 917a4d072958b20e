"""Plans in files as `draw` takes them: of a flow of one's own, not the best there is, and not to be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowgraph.files.shipped import flows_folder
from tests.cli.said import text_of

Run = Callable[..., Any]


def test_a_costed_plan_of_a_flow_in_a_file_is_drawn(flowgraph: Run) -> None:
    Path("mine.py").write_text((flows_folder() / "gpg.py").read_text().replace("def gpg(", "def mine("))
    text_of(flowgraph("plan", "mine.py", "--cluster", "8xh100", "-o", "plan.json"))
    assert "policy.update" in text_of(flowgraph("draw", "plan.json"))
    assert "this plan" in text_of(flowgraph("draw", "plan.json", "--picture", "placements"))


def test_the_name_of_a_flow_in_a_plan_runs_no_file(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "gpg", "--cluster", "laptop", "-o", "plan.json"))
    Path("evil.py").write_text("from pathlib import Path\n\nPath('ran').touch()\n")
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(plan | {"flow": "evil.py"}))
    assert "policy.train" in text_of(flowgraph("draw", "plan.json"))
    assert not Path("ran").exists()


def test_a_plan_that_is_not_the_best_is_not_said_to_be(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "ppo", "--cluster", "2x8xh100", "--placement", "hybrid", "-o", "plan.json"))
    told = json.loads(text_of(flowgraph("draw", "plan.json", "--picture", "placements", "--to", "json")))
    first, second = told["strips"][:2]
    plan = json.loads(Path("plan.json").read_text())
    assert first["label"].startswith("this plan, hybrid:verl") and first["seconds"] == plan["step"]["period_s"]
    assert [len(first["parts"]), second["label"], second["why"]] == [1, "the best found", "the best"]
    assert "This plan is another" in text_of(flowgraph("draw", "plan.json", "--picture", "search")).replace("\n", " ")


@pytest.mark.parametrize("name", ["timeline", "memory", "search"])
def test_a_hint_for_a_file_is_one_that_can_be_followed(flowgraph: Run, name: str) -> None:
    text_of(flowgraph("plan", "gpg", "-o", "plan.json"))
    bare = json.loads(Path("plan.json").read_text()) | {"forecast": [], "step": None, "assumed": None}
    Path("bare.json").write_text(json.dumps(bare))
    said = flowgraph("draw", "bare.json", "--picture", name)
    assert said.code == 2 and said.err.endswith("  hint: flowgraph plan FLOW -o plan.json\n")
    text_of(flowgraph("draw", "plan.json", "--picture", name))


def test_a_file_that_is_no_program_is_named(flowgraph: Run) -> None:
    Path("x.json").write_text('{"tasks": 1, "graph": 2}')
    assert flowgraph("draw", "x.json").err.startswith("x.json: this is not a stored program")


def test_no_control_code_of_a_plan_reaches_the_terminal(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "gpg", "--cluster", "laptop", "-o", "plan.json"))
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps(plan | {"flow": "\x1b[31mred", "assumed": None}))
    said = flowgraph("draw", "plan.json", "--picture", "flow")
    assert said.code == 2 and "flow `\\x1b[31mred`" in said.err
    Path("other.json").write_text(Path("plan.json").read_text().replace('"all"', '"all\\u001b[31m"'))
    said = flowgraph("diff", "plan.json", "other.json")
    assert said.code == 1 and "pools[0].name: " in said.err and "\x1b" not in said.out + said.err
