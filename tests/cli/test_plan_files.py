"""Plans in files that were edited: what cannot run is a fault of `check`, and an error, not a traceback, elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kept_plans import write_plan

Run = Callable[..., Any]
Edit = Callable[[dict[str, Any]], object]
G8 = (
    *("--model", "Qwen3-8B", "--batch", 64, "--prompt-tokens", 512, "--response-tokens", "mean=1k,max=4k"),
    *("--set", "policy.generate.max_tokens=4096"),
)


@pytest.fixture
def written(flowgraph: Run) -> Callable[..., dict[str, Any]]:
    """Return `written(verb, cluster, *options)`: the plan that is found, as it is written to plan.json."""

    def make(verb: str = "plan", cluster: str = "8xh100", *options: object) -> dict[str, Any]:
        text = write_plan(flowgraph, verb, "grpo", *G8, "--cluster", cluster, *options)
        plan: dict[str, Any] = json.loads(text)
        return plan

    return make


def edited(plan: dict[str, Any], edit: Edit) -> str:
    """Write a plan as it is edited to edited.json."""
    edit(plan)
    Path("edited.json").write_text(json.dumps(plan))
    return "edited.json"


def placed(plan: dict[str, Any], role: str) -> dict[str, Any]:
    """Return where a plan has a role."""
    found: dict[str, Any] = next(each for each in plan["placed"] if each["role"] == role)
    return found


def shown(seconds: float) -> str:
    """Write seconds as the commands do."""
    from placements.report.search_report import show_s

    return show_s(seconds)


# ---------------------------------------------------------------------------------------- explain, of the plan itself


@pytest.mark.parametrize(("verb", "cluster"), [("fit", "8xh100"), ("plan", "8xh100"), ("plan", "4x8xh100")])
def test_a_plan_is_explained_as_it_is_and_not_as_it_would_be_found(
    flowgraph: Run, written: Any, verb: str, cluster: str
) -> None:
    plan = written(verb, cluster)
    said = flowgraph("explain", "plan.json")
    steps = re.findall(r"^policy\.train .*: ([0-9.,]+ m?s) a step$", said.out, re.MULTILINE)
    assert steps == [shown(plan["step"]["period_s"])]
    assert ("the same pools at their fastest" in said.out) == (verb == "fit"), "which takes no more than it has to"


def test_an_edited_layout_is_explained_as_it_now_is_and_check_says_what_changed(flowgraph: Run, written: Any) -> None:
    plan = written()
    before = plan["step"]["period_s"]
    path = edited(plan, lambda plan: placed(plan, "policy.train")["layout"].update(data=4, tensor=2))
    (after, *_) = json.loads(flowgraph("explain", path, "--json").out)
    assert after["step_s"] > before * 1.01
    said = flowgraph("check", path)
    assert (said.code, said.out) == (0, "")
    assert said.err.startswith(f"its file says {shown(before)} a step; the forecast is now {shown(after['step_s'])}")


def test_a_plan_is_checked_on_another_cluster_with_the_seconds_there(flowgraph: Run, written: Any) -> None:
    written()
    said = flowgraph("check", "plan.json", "--cluster", "8xh200")
    assert said.code == 0
    assert re.fullmatch(r"a step takes [0-9.]+ s there\nplan\.json: no fault\n", said.err)


def test_tensor_groups_over_machines_of_one_device_are_a_fault(flowgraph: Run, written: Any) -> None:
    cut = edited(written(), lambda plan: placed(plan, "policy.sample")["layout"].update(data=4, tensor=2))
    said = flowgraph("check", cut, "--cluster", "8x1xh100")
    assert said.code == 1
    assert said.out == (
        "8x1xh100: policy.sample: the plan needs tensor groups of 2 devices; no domain there has more than 1 device\n"
    )


# ---------------------------------------------------------------------------------------- the ways to run a role


def test_the_ways_to_run_a_role_have_the_plans_own_and_say_which_do_not_fit(flowgraph: Run, written: Any) -> None:
    """Two devices train an 8B model only from host memory."""
    train = placed(written("fit"), "policy.train")
    assert train["running"]["offload"]
    lines = flowgraph("explain", "plan.json", "policy.train").out.splitlines()
    at = next(number for number, line in enumerate(lines) if "the current layout (→)" in line)
    own = [line for line in lines[at + 1 :] if "→ " in line]
    assert len(own) == 1 and "GiB at work" in own[0] and "does not fit" not in own[0]
    assert "offload=all" in " ".join(lines[at + 1 :])
    held = [float(each) for each in re.findall(r"([0-9.]+) GiB at work(?!: does not fit)", "\n".join(lines))]
    assert max(held) < 79.6


# ---------------------------------------------------------------------------------------- edits that cannot run


def _cache(plan: dict[str, Any]) -> None:
    placed(plan, "policy.sample")["running"]["cache_share"] = 0.01


def _too_few_devices(plan: dict[str, Any]) -> None:
    placed(plan, "policy.train")["layout"]["data"] = 9


def _circle(plan: dict[str, Any]) -> None:
    plan["step"]["waits"].append({"before": "policy.update", "after": "policy.generate", "delay": 0})


def _negative(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["parts"]["tail"] = -100


def _no_number(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["parts"]["tail"] = float("nan")


def _too_long(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["parts"]["tail"] = plan["step"]["tasks"][1]["parts"]["tail"] = 1e308


def _negative_period(plan: dict[str, Any]) -> None:
    plan["step"]["period_s"] = -3.0


def _no_task(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"] = plan["step"]["waits"] = []


def _pool_of_a_task(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["pools"] = ["pool9"]


def _pool_of_a_forecast(plan: dict[str, Any]) -> None:
    plan["forecast"][0]["pool"] = "pool7"


def _role_of_a_forecast(plan: dict[str, Any]) -> None:
    plan["forecast"][0]["peaks"][0] |= {"role": "zorg", "memory_bytes": 10**15}


def _no_models(plan: dict[str, Any]) -> None:
    plan["assumed"]["models"] = {}


def _another_model(plan: dict[str, Any]) -> None:
    plan["assumed"]["models"]["zorg"] = "tiny"


def _unknown_model(plan: dict[str, Any]) -> None:
    plan["assumed"]["models"]["policy"] = "Qwen3-9B"


def _engine(plan: dict[str, Any]) -> None:
    plan["assumed"]["engines"] = {"train": "zorg"}


def _constant(plan: dict[str, Any]) -> None:
    plan["assumed"]["constants"] = {"fsdp": {"matmul_share": 7.0}}


def _node(plan: dict[str, Any]) -> None:
    plan["pools"][0]["devices"][0] = ["node-99", 0]


def _missing(plan: dict[str, Any]) -> None:
    plan["placed"].pop(0)


def _renamed(plan: dict[str, Any]) -> None:
    placed(plan, "policy.train")["role"] = "policy.trian"


FAULTS: list[tuple[Edit, str]] = [
    (_cache, "policy.sample: with cache_share=0.01 and tensor=1 its weights leave no room for a cache"),
    (_too_few_devices, "policy.train: data=9 tensor=1 sharding=full takes 9 devices, its pool has 8\n"),
    (_circle, "step: tasks of one step wait for each other: policy.generate → "),
    (_negative, "step.tasks[0].parts.tail: Input should be greater than or equal to 0\n"),
    (_no_number, "is not JSON: NaN is not a JSON number\n"),
    (_too_long, "step.tasks[0].parts.tail: Input should be less than or equal to "),
    (_negative_period, "step.period_s: Input should be greater than or equal to 0\n"),
    (_no_task, "step: has no task\n"),
    (_pool_of_a_task, "no pool of the task wake policy on all/sglang: `pool9`\n  hint: known: all, host\n"),
    (_pool_of_a_forecast, "no pool of a forecast: `pool7`\n  hint: known: all\n"),
    (_role_of_a_forecast, "no role of the forecast of all: `zorg`\n"),
    (_no_models, "assumed.models: names no model for policy, ref\n"),
    (_another_model, "no model parameter of the flow: `zorg`\n  hint: known: policy, ref\n"),
    (_unknown_model, "no model `Qwen3-9B`\n  hint: did you mean `Qwen3.5-9B` or `Qwen3-8B`"),
    (_engine, "no engine to train: `zorg`\n  hint: known: fsdp, local, megatron\n"),
    (_constant, "fsdp.matmul_share=7.0, but it may be 0.4 to 1.1\n"),
    (_node, "no device of pool `all`: `node-99/0`\n  hint: did you mean `node-1/0`?\n"),
    (_missing, "not placed: policy.train\n"),
    (_renamed, "no role `policy.trian`\n  hint: did you mean `policy.train`?\n"),
]
UNREADABLE = {"_negative", "_no_number", "_too_long", "_negative_period"}
OF_THE_FORECAST = {"_circle", "_no_task", "_pool_of_a_task", "_pool_of_a_forecast", "_role_of_a_forecast"}
OF_THE_FILE = {"_node", *UNREADABLE, *OF_THE_FORECAST}


@pytest.mark.parametrize("every_verb", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in turn", "all"])
@pytest.mark.parametrize("place", range(len(FAULTS)), ids=[edit.__name__ for edit, _ in FAULTS])
def test_a_plan_that_cannot_run_has_a_fault_and_no_verb_a_traceback(
    flowgraph: Run, written: Any, place: int, every_verb: bool
) -> None:
    edit, why = FAULTS[place]
    path, name = edited(written(), edit), edit.__name__
    checked = flowgraph("check", path)
    assert checked.code == 1
    assert (checked.out + checked.err).startswith(f"edited.json: {why}")
    forecasts = (("explain", path), ("explain", path, "policy.train"), ("plan", "grpo", "--plan", path))
    for verb in forecasts if every_verb else (forecasts[place % 3],):
        said = flowgraph(*verb)
        if name in OF_THE_FORECAST:
            assert said.code == 0, "its memory and seconds are forecast anew"
        else:
            assert (said.code, said.out) == (1, "")
            assert said.err.startswith(f"edited.json: {why}")
    simulated = (("simulate", path), ("compare", path, "plan.json"))
    for verb in simulated if every_verb else (simulated[place % 2],):
        said = flowgraph(*verb)
        assert said.code in (0, 1)
        if name in OF_THE_FILE:
            assert (said.code, said.out) == (1, "")
            assert said.err.startswith(f"edited.json: {why}")


def test_of_a_role_that_is_missing_its_forecast_is_not_told_too(flowgraph: Run, written: Any) -> None:
    said = flowgraph("check", edited(written(), _missing))
    assert said.err == "edited.json: 1 fault\n"


def test_what_a_file_was_made_for_is_a_fault_too_where_it_cannot_be(flowgraph: Run, written: Any) -> None:
    said = flowgraph("check", edited(written(), lambda plan: plan["assumed"].update(engines={"train": "sglang"})))
    assert (said.code, said.err) == (1, "edited.json: 1 fault\n")
    assert said.out.startswith("edited.json: no engine to train: `sglang`\n")
    told = flowgraph("check", "edited.json", "--json")
    assert [fault.partition("\n")[0] for fault in json.loads(told.out)["faults"]] == [said.out.partition("\n")[0]]


def test_a_file_that_names_another_flow_is_told_where_it_does(flowgraph: Run, written: Any) -> None:
    said = flowgraph("explain", edited(written(), lambda plan: plan["assumed"].update(flow="ppo")))
    assert (said.code, said.out) == (1, "")
    assert said.err.endswith("\n  hint: the file names this flow as `assumed.flow`: flowgraph plan ppo\n")
