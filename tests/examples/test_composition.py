"""Algorithms that we do not ship, each a function in a file of its own: they run, and are made of what they say."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from flowgraph.cli import main
from flowgraph.errors import SettingError
from flowgraph.flows.flow_files import find_flow, flows_in, import_file
from flowgraph.language.values import Group, Trainable
from nodes import Scores

FLOWS = Path(__file__).parent / "flows"
FILES = sorted(FLOWS.glob("*.py"))
SEVERAL = {
    "distill.py": ("distill", "learn_from", "distill_and_score"),
    "moving_reference.py": ("with_average", "with_refreshes"),
    "parts.py": ("by_clip", "by_gradient"),
}
NAMED = [
    *(path.name for path in FILES if path.name not in SEVERAL),
    *(f"{file}:{name}" for file, names in SEVERAL.items() for name in names),
]

Line = dict[str, Any]
Run = Callable[..., list[Line]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give `run(flow, *arguments, out)`: `flowgraph run` of a flow of this folder, and the lines of its metrics."""
    monkeypatch.chdir(tmp_path)

    def start(flow: str, *arguments: object, out: str = "run") -> list[Line]:
        few = ("--cluster", "1xcpu", "--steps", 2, "--batch", 6, "--eval-every", 0, "--out", out)
        short = ("--set", "policy.refill.max_tokens=4") if flow == "dapo.py" else ()
        words = ["flowgraph", "run", f"{FLOWS}/{flow}", *few, *short, *arguments]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]

    return start


def rollout(run: Path, node: str, step: int = 0) -> dict[str, list[Any]]:
    """Give the columns of what a run recorded of one node."""
    columns: dict[str, list[Any]] = pq.read_table(run / "rollouts" / node / f"{step:06d}.parquet").to_pydict()
    return columns


# ------------------------------------------------------------------------------------------- one function, one file


def code_lines(path: Path) -> dict[str, int]:
    """Count the lines of each flow that hold code: no docstring, no blank line, no decorator."""
    tree, counted = ast.parse(path.read_text()), dict[str, int]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and [ast.unparse(each) for each in node.decorator_list] == ["flow"]:
            said = {n for each in node.body[:1] for n in range(each.lineno, (each.end_lineno or 0) + 1)}
            lines = path.read_text().splitlines()
            held = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n not in said and lines[n - 1].strip()]
            counted[node.name] = len(held)
    return counted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_flow_is_one_function_of_under_twenty_lines_that_adds_nothing_to_our_packages(path: Path) -> None:
    import_file(path)
    counted = code_lines(path)
    assert counted.keys() == flows_in(path).keys() and max(counted.values()) < 20
    ours = [
        each for name, each in sys.modules.items() if name.partition(".")[0] in ("flowgraph", "nodes", "placements")
    ]
    added = [
        value
        for each in ours
        for value in vars(each).values()
        if getattr(value, "__module__", "") == f"flowgraph_flow.{path.stem}"
    ]
    assert added == []


def test_remax_and_the_flow_with_two_scores_are_short_with_all_that_they_define() -> None:
    whole = {}
    for name in ("remax", "two_scores"):
        tree = ast.parse((FLOWS / f"{name}.py").read_text())
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        whole[name] = sum((node.end_lineno or 0) - node.lineno + 1 for node in defined)  # docstrings too
    assert whole == {"remax": 16, "two_scores": 10}


@pytest.mark.parametrize("flow", NAMED)
def test_it_runs_and_moves_every_model_that_it_trains(run: Run, tmp_path: Path, flow: str) -> None:
    from safetensors.torch import load_file

    found = find_flow(f"{FLOWS}/{flow}")
    lines = run(flow)
    assert [line["step"] for line in lines] == [0, 1]
    params = {param.name: param.type for param in found.flow.graph().params}
    trained = [name for name in found.flow.graph().carries() if issubclass(params[name], Trainable)]
    assert trained == (["solver", "editor"] if "two_agents" in flow else ["policy"])
    weights = {name: load_file(tmp_path / "run" / "weights" / name / "model.safetensors") for name in trained}
    for name in trained:  # a teacher that is the student's own beginning teaches it nothing
        moved = any(line[f"{name}.update.grad_norm"] > 0 for line in lines)
        assert moved == (flow != "distill.py:distill")
        assert all(torch.isfinite(tensor).all() for tensor in weights[name].values())
    if len(trained) == 2:
        one, two = weights.values()
        assert any(not torch.equal(one[name], two[name]) for name in one)


# ------------------------------------------------------------------------------------------- what each is made of


def test_remax_subtracts_the_greedy_score_of_the_same_prompt_in_whatever_order() -> None:
    module: Any = import_file(FLOWS / "remax.py")
    scores, group = Scores(torch.tensor([1.0, 0.5, 0.25, 0.0])), Group(torch.tensor([7, 3, 7, 9]))
    greedy, prompt = Scores(torch.tensor([0.5, 0.125, 1.0])), Group(torch.tensor([3, 7, 9]))
    assert module.against(scores, group, greedy=greedy, prompt=prompt).data.tolist() == [0.875, 0.0, 0.125, -1.0]


def test_remax_draws_four_samples_and_one_greedy_response_to_each_prompt(run: Run, tmp_path: Path) -> None:
    run("remax.py")
    drawn, greedy = rollout(tmp_path / "run", "policy.generate"), rollout(tmp_path / "run", "policy.generate#2")
    assert (len(drawn["text"]), len(greedy["text"])) == (24, 6)
    assert drawn["group"] == [group for group in greedy["group"] for _ in range(4)]
    assert drawn["sample"] == [0, 1, 2, 3] * 6 and len(set(greedy["group"])) == 6
    assert "score" in drawn and "score#2" in greedy


def test_two_scores_are_added_by_their_weights(run: Run, tmp_path: Path) -> None:
    run("two_scores.py")
    told = rollout(tmp_path / "run", "policy.generate")
    assert any(told["score"])
    for one, two, both in zip(told["score"], told["score#2"], told["add"], strict=True):
        assert both == pytest.approx(0.7 * one + 0.3 * two)


def test_dapo_trains_on_groups_with_signal_only(run: Run, tmp_path: Path) -> None:
    lines = run("dapo.py", "--batch", 24, "--steps", 3)
    for line in lines:
        told = rollout(tmp_path / "run", "policy.refill", line["step"])
        scores = dict[int, list[float]]()
        for group, scored in zip(told["group"], told["scores"], strict=True):
            scores.setdefault(group, []).append(scored)
        assert [len(each) for each in scores.values()] == [4] * 4
        assert all(len(set(each)) > 1 for each in scores.values())
        assert line["policy.refill.groups_kept"] == 4 and line["group_normalize.no_signal"] == 0
        assert line["policy.refill.groups_tried"] == 8 * line["policy.refill.rounds"]
    assert {line["policy.refill.rounds"] for line in lines} >= {1.0}


def test_an_editor_is_shown_the_first_draft_to_each_question(run: Run, tmp_path: Path) -> None:
    run("two_agents.py")
    drafts, edits = rollout(tmp_path / "run", "solver.generate"), rollout(tmp_path / "run", "editor.generate")
    asked = {group: told[0]["content"] for group, told in zip(drafts["group"], drafts["columns.prompt"], strict=True)}
    first = {g: text for g, s, text in zip(drafts["group"], drafts["sample"], drafts["text"], strict=True) if s == 0}
    assert len(edits["group"]) == 24
    for group, told in zip(edits["group"], edits["columns.prompt"], strict=True):
        assert told[0]["content"] == first[group] + asked[group]


def test_a_student_comes_nearer_to_a_teacher_that_knows_more(run: Run, tmp_path: Path) -> None:
    fast = ("--set", "policy.update.lr=0.01")
    run("two_scores.py", "--steps", 6, *fast, out="teacher")
    models = ("--model", "policy=tiny", "--model", "teacher=teacher/weights/policy")
    lines = run("distill.py:distill", "--steps", 8, *models, *fast, out="student")
    told = [line["policy.update.kl_k3.kl"] for line in lines]
    assert told[0] > 0.01 and told[-1] < 0.5 * told[0]
    both = run("distill.py:distill_and_score", *models, "--set", "weight=2.0", out="both")
    assert all({"score.reward", "policy.update.kl_k3.kl"} <= line.keys() for line in both)


def test_two_flows_share_a_part_each_with_its_own_settings() -> None:
    clip, gradient = (find_flow(f"{FLOWS}/parts.py:{name}").flow for name in ("by_clip", "by_gradient"))
    given = {flow.name: [dict(node.settings) for node in flow.graph().nodes][:2] for flow in (clip, gradient)}
    assert [each["n"] for each, _ in given.values()] == [4, 8]
    assert [each["by"] for _, each in given.values()] == ["partial", "data"]
    assert [dict(node.settings)["n"] for node in clip.graph({"n": 9}).nodes if node.op.name == "generate"] == [9]


def test_a_parameter_of_a_flow_is_set_on_the_command_line_and_held_to_its_range(run: Run, tmp_path: Path) -> None:
    run("parts.py:by_clip", "--set", "n=3", "--set", "eps=0.3")
    told = {each["name"]: each for each in json.loads((tmp_path / "run" / "settings.json").read_text())}
    assert (told["n"]["value"], told["n"]["origin"]) == (3, "--set")
    assert told["policy.generate.n"]["value"] == 3 and told["policy.update.clipped.eps"]["value"] == 0.3
    for own in ({"n": 65}, {"eps": 1}, {"m": 3}):
        with pytest.raises(SettingError, match=rf"by_clip(\.{next(iter(own))}=| has no setting `m`)"):
            find_flow(f"{FLOWS}/parts.py:by_clip").flow.graph(own)
