"""Warnings of a run: when each rule holds, what begins and ends it, and how they are switched off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowgraph import Graph
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.request import Workload
from flowgraph.app.running.training_warnings import NAMES, RULES, TrainingWarnings, chosen_rules
from flowgraph.errors import UsageError
from flowgraph.language.region import Observations
from flowgraph.language.values import Measure
from flowgraph.runtime.interpreter import StepResult

NODE_OF = {
    "no_signal": "group_normalize",
    "reward": "score",
    "entropy": "policy.generate",
    "finished": "policy.generate",
    "kl": "policy.update.kl_k3",
    "approx_kl": "policy.update.clipped",
    "clip_fraction": "policy.update.clipped",
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return the compiled graph of GRPO."""
    return compiled_flow(Workload(flow="grpo"))


def watched(watch: TrainingWarnings, metrics: Sequence[Mapping[str, float]], start: int = 0) -> list[list[str]]:
    """Return the names of the warnings of each step; each mapping has the metrics of one step."""
    found = list[list[str]]()
    for step, values in enumerate(metrics, start):
        observed = Observations()
        for name, value in values.items():
            node, _, metric = name.rpartition(".")
            observed.add(node or NODE_OF[name], [Measure(metric, value, 1)])
        places: Any = None
        watch.stepped(step, StepResult({}, observed, places), 1.0)
        warned = (name for name in observed.means() if name.startswith("warnings."))
        found.append([name.partition(".")[2] for name in warned])
    return found


def steps_of(name: str, *values: float) -> list[dict[str, float]]:
    """Return the metrics of steps in which one metric has these values."""
    return [{name: value} for value in values]


CASES = {
    "no_signal": steps_of("no_signal", *[1.0] * 5),
    "constant_reward": steps_of("reward", *[0.25] * 10),
    "frozen_entropy": steps_of("entropy", *[1e-4] * 10),
    "exploding_kl": steps_of("kl", *[0.1] * 10, 1.5),
    "clip_bound": steps_of("clip_fraction", *[0.6] * 5),
    "all_cut": steps_of("finished", *[0.0] * 5),
}
HEALTHY = {
    "no_signal": steps_of("no_signal", 1, 1, 1, 1, 0.99),
    "constant_reward": steps_of("reward", *[0.25] * 9, 0.26),
    "frozen_entropy": steps_of("entropy", *[1e-4] * 9, 0.01),
    "exploding_kl": steps_of("kl", *[0.1] * 10, 0.99),
    "clip_bound": steps_of("clip_fraction", *[0.6] * 4, 0.49),
    "all_cut": steps_of("finished", 0, 0, 0, 0, 0.01),
}


def test_every_warning_has_a_case() -> None:
    assert list(CASES) == list(HEALTHY) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_warning_is_given_at_the_step_at_which_its_rule_first_holds(name: str, graph: Graph) -> None:
    found = watched(TrainingWarnings(RULES, graph, list[str]().append), CASES[name])
    assert found == [[]] * (len(found) - 1) + [[name]]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_just_within_the_threshold_gives_no_warning(name: str, graph: Graph) -> None:
    found = watched(TrainingWarnings(RULES, graph, list[str]().append), HEALTHY[name])
    assert found == [[]] * len(found)


def test_one_update_that_moves_the_policy_too_far_warns_at_once(graph: Graph) -> None:
    watch = TrainingWarnings(RULES, graph, list[str]().append)
    assert watched(watch, steps_of("approx_kl", 0.02, 1.2, 0.02)) == [[], ["exploding_kl"], []]


def test_a_kl_that_starts_at_zero_or_grows_slowly_does_not_explode(graph: Graph) -> None:
    watch = TrainingWarnings(RULES, graph, list[str]().append)
    assert not any(watched(watch, steps_of("kl", *[0.0] * 11, *(0.05 * step for step in range(80)))))


def test_a_kl_that_jumps_from_zero_explodes(graph: Graph) -> None:
    watch = TrainingWarnings(RULES, graph, list[str]().append)
    assert watched(watch, steps_of("kl", *[0.0] * 10, 3.0))[-1] == ["exploding_kl"]


def test_a_metric_that_is_not_a_number_gives_no_warning(graph: Graph) -> None:
    watch = TrainingWarnings(RULES, graph, list[str]().append)
    assert not any(watched(watch, steps_of("finished", 0, 0, math.nan, 0, 0, 0, 0)))


def test_it_is_said_once_with_its_formula_and_a_hint_and_again_when_it_comes_back(graph: Graph) -> None:
    said = list[str]()
    steps = steps_of("no_signal", *[1.0] * 7, 0.5, *[1.0] * 6)
    found = watched(TrainingWarnings(RULES, graph, said.append), steps)
    assert [bool(names) for names in found] == [False] * 4 + [True] * 3 + [False] * 5 + [True] * 2
    assert [line.partition(":")[0] for line in said] == [
        "warning no_signal after step 5",
        "  hint",
        "warning no_signal after step 13",
        "  hint",
    ]
    assert said[0].endswith("(group_normalize.no_signal: the smallest `no_signal` of 5 steps is at least 1)")


def test_responses_that_may_not_end_are_not_counted_as_cut() -> None:
    graph = compiled_flow(Workload(flow="grpo", settings=("policy.generate.ignore_eos=true",)))
    assert not any(watched(TrainingWarnings(RULES, graph, list[str]().append), CASES["all_cut"]))


def test_each_node_is_judged_by_itself(graph: Graph) -> None:
    steps = [{"format.reward": 0.5, "score.reward": step / 20} for step in range(10)]
    said = list[str]()
    assert watched(TrainingWarnings(RULES, graph, said.append), steps)[-1] == ["constant_reward"]
    assert "(format.reward: " in said[0]


def test_a_resumed_run_warns_at_the_same_steps(graph: Graph) -> None:
    steps = [*CASES["no_signal"], {"no_signal": 1.0}]
    whole = watched(TrainingWarnings(RULES, graph, list[str]().append), steps)
    lines = [{"step": step, "group_normalize.no_signal": 1.0, "time": {"step_s": 1.0}} for step in range(3)]
    lines.insert(1, {"step": 1, "eval/accuracy": 0.0, "time": {"check_s": 1.0}})
    said = list[str]()
    assert watched(TrainingWarnings(RULES, graph, said.append, lines), steps[3:], start=3) == whole[3:]
    assert len(said) == 2, "what began before the checkpoint is not said again"


def test_warnings_are_switched_by_name() -> None:
    assert chosen_rules("all") == RULES
    assert chosen_rules("none") == chosen_rules("") == ()
    assert {rule.name for rule in chosen_rules("all_cut, exploding_kl")} == {"all_cut", "exploding_kl"}
    assert {rule.name for rule in chosen_rules("-all_cut,-clip_bound")} == {*NAMES} - {"all_cut", "clip_bound"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("no_signl", "--warnings no_signl: no warning `no_signl`\n  hint: did you mean `no_signal`?"),
        (
            "no_signal,-all_cut",
            "--warnings no_signal,-all_cut: names warnings to give and others to leave out\n  hint: use one of the two",
        ),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen_rules(text)
    assert str(caught.value) == error


def test_the_page_about_runs_has_every_rule_with_its_formula() -> None:
    text = (Path(__file__).parents[4] / "docs" / "runs.md").read_text("utf-8")
    table = text.partition("## Warnings\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{rule.name}` | {rule.formula} | {rule.meaning} | {rule.hint} |" for rule in RULES]


def test_every_metric_of_a_rule_is_one_that_a_node_declares() -> None:
    import nodes
    from flowgraph.language import op_of

    functions = (getattr(nodes, name) for name in nodes.__all__)
    declared = {metric.name for fn in functions if (op := op_of(fn)) is not None for metric in op.metrics}
    assert {rule.metric for rule in RULES} <= declared
