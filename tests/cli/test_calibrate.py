"""`calibrate`: constants fitted to what runs have measured, the misses before and after, and nothing on failure."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from placements.constants import bounds
from tests.cli.said import text_of

Run = Callable[..., Any]
ASKED = ("--cluster", "1x8xh100", "--model", "Qwen/Qwen3-0.6B", "--batch", "64")
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=1k,max=4k")
FACTS = {"flow": "grpo", "metrics": {}, "status": "done", "steps": 4, "steps_done": 4, "data": {"name": "digits"}}


def refused(said: Any, code: int = 1) -> str:
    """Give the error's text; nothing is on stdout or written, and there is no traceback."""
    assert (said.code, said.out) == (code, ""), said
    assert "Traceback" not in said.err
    assert not Path("profile.toml").exists()
    text: str = said.err
    return text


@pytest.fixture
def plan(flowgraph: Run) -> dict[str, Any]:
    """Give the plan of GRPO, as it is written to plan.json."""
    text_of(flowgraph("plan", "grpo", *ASKED, *LENGTHS, "-o", "plan.json"))
    written: dict[str, Any] = json.loads(Path("plan.json").read_text())
    return written


def forecast(plan: Mapping[str, Any]) -> dict[str, float]:
    """Give the seconds that a plan forecasts of each node that a model does."""
    kinds = {"generate", "logprob", "update"}
    return {each["name"]: sum(each["parts"].values()) for each in plan["step"]["tasks"] if each["kind"] in kinds}


def steps(seconds: Mapping[str, Any], count: int = 4) -> str:
    """Give the metrics of a run whose nodes took so long in each step, and ten times as long in the first."""
    lines = [{"step": 0, "time": {"nodes_s": {name: each * 10 for name, each in seconds.items()}}}] * (count > 1)
    lines += [{"step": i, "time": {"nodes_s": dict(seconds)}} for i in range(len(lines), count)]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def folder(name: str, plan: Mapping[str, Any] | None, metrics: str | None) -> str:
    """Write a run's folder."""
    Path(name).mkdir()
    Path(name, "run.json").write_text(json.dumps(FACTS))
    if plan is not None:
        Path(name, "plan.json").write_text(json.dumps(plan))
    if metrics is not None:
        Path(name, "metrics.jsonl").write_text(metrics)
    return name


def slower(plan: Mapping[str, Any], times: float, **more: Any) -> str:
    """Give the metrics of a run that took so many times what its plan forecasts."""
    return steps({name: times * each for name, each in forecast(plan).items()} | more)


def test_the_misses_before_and_after_are_printed_and_the_profile_is_written(flowgraph: Run, plan: Any) -> None:
    said = flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "-o", "profile.toml")
    lines = text_of(said).splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["sglang", "fsdp"]
    counts = [1, len(forecast(plan)) - 1]  # what draws, and what trains or reads
    assert [line for line in lines if "before" in line] == [
        f"  before  median |error| 20.0%, bias -20.0%, worst 20% of {count}" for count in counts
    ]
    assert [line.rpartition(" ")[2] for line in lines if "after" in line] == [str(count) for count in counts]
    assert said.err == "profile.toml\n"
    profile = tomllib.loads(Path("profile.toml").read_text())
    assert {engine: next(iter(table)) for engine, table in profile.items()} == {
        "sglang": "layer_s",
        "fsdp": "matmul_share",
    }
    assert all("fitted to run" in each["source"] for table in profile.values() for each in table.values())


def test_as_json_it_is_the_same(flowgraph: Run, plan: Any) -> None:
    told = json.loads(text_of(flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "--json")))
    assert [each["engine"] for each in told] == ["sglang", "fsdp"]
    for each in told:
        assert each["after"]["median"] < each["before"]["median"] == pytest.approx(0.2)
        assert each["before"]["count"] == each["after"]["count"]


def test_a_profile_is_what_the_next_plan_forecasts_with(flowgraph: Run, plan: Any) -> None:
    text_of(flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "-o", "profile.toml"))
    text_of(flowgraph("plan", "grpo", *ASKED, *LENGTHS, "--profile", "profile.toml", "-o", "next.json"))
    there = json.loads(Path("next.json").read_text())
    fitted = {
        engine: {name: each["value"] for name, each in table.items()}
        for engine, table in tomllib.loads(Path("profile.toml").read_text()).items()
    }
    assert there["assumed"]["constants"] == fitted
    before, after = forecast(plan), forecast(there)
    assert after["policy.generate"] == pytest.approx(1.25 * before["policy.generate"], rel=0.02)
    text_of(flowgraph("explain", "next.json", "policy.sample"))


def test_of_two_runs_the_one_that_is_far_off_is_named(flowgraph: Run, plan: Any) -> None:
    update = forecast(plan)["policy.update"]
    runs = [
        folder("right", plan, steps({"policy.update": update})),
        folder("slip", plan, steps({"policy.update": 100 * update})),
    ]
    lines = text_of(flowgraph("calibrate", *runs)).splitlines()
    (far,) = (line for line in lines if "far off" in line)
    assert re.fullmatch(
        r"  far off: slip policy\.update took [0-9.]+ times what is forecast, so its seconds may be wrong", far
    )
    (told,) = json.loads(text_of(flowgraph("calibrate", *runs, "--json")))
    assert list(told["far"]) == ["slip policy.update"]


def test_constants_that_would_forecast_worse_are_kept_and_no_profile_has_them(flowgraph: Run, plan: Any) -> None:
    seconds = forecast(plan)
    asked = [f"{name}={seconds[name]}" for name in ("policy.generate", "policy.logprobs", "ref.logprobs")]
    asked.append(f"policy.update={100 * seconds['policy.update']}")
    asked = [text for each in asked for text in ("--measured", each)]
    lines = text_of(flowgraph("calibrate", "plan.json", *asked, "-o", "profile.toml")).splitlines()
    assert "  its constants are kept as they are: fitted, they would miss by more" in lines
    assert set(tomllib.loads(Path("profile.toml").read_text())) == {"sglang"}


def test_a_node_is_measured_once(flowgraph: Run, plan: Any) -> None:
    twice = ("--measured", "policy.update=3", "--measured", "policy.update=4")
    assert refused(flowgraph("calibrate", "plan.json", *twice), 2) == (
        "--measured policy.update=3: `policy.update` is said twice\n  hint: leave one of them out\n"
    )


@pytest.mark.parametrize("times", [1e-3, 0.1, 10.0, 1e6])
def test_no_measurement_moves_a_constant_out_of_its_bounds(flowgraph: Run, plan: Any, times: float) -> None:
    text_of(flowgraph("calibrate", folder("run", plan, slower(plan, times)), "-o", "profile.toml"))
    for engine, table in tomllib.loads(Path("profile.toml").read_text()).items():
        for name, each in table.items():
            limits = bounds(engine)[name]
            assert limits.low <= each["value"] <= limits.high
    text_of(flowgraph("plan", "grpo", *ASKED, *LENGTHS, "--profile", "profile.toml"))


def test_runs_that_contradict_each_other_leave_the_constants_about_where_they_were(flowgraph: Run, plan: Any) -> None:
    runs = [folder(f"run-{times}", plan, slower(plan, times)) for times in (0.5, 2.0)]
    told = json.loads(text_of(flowgraph("calibrate", *runs, "--json")))
    for each in told:
        assert each["after"]["median"] == pytest.approx(each["before"]["median"], rel=0.2)
        for name, value in each["constants"].items():
            assert value == pytest.approx(bounds(each["engine"])[name].value, rel=0.25)


def test_a_run_of_one_step_and_one_node_fits_the_one_constant_that_it_tells(flowgraph: Run, plan: Any) -> None:
    update = 1.3 * forecast(plan)["policy.update"]
    run = folder("run", plan, steps({"policy.update": update}, count=1))
    told = json.loads(text_of(flowgraph("calibrate", run, "--json")))
    assert [(each["engine"], list(each["constants"])) for each in told] == [("fsdp", ["matmul_share"])]


@pytest.mark.parametrize("value", [-1.0, 0, float("nan"), float("inf"), "3", True, [1, 2], 10**400])
def test_seconds_that_cannot_be_are_refused(flowgraph: Run, plan: Any, value: Any) -> None:
    seconds = forecast(plan) | {"policy.update": value}
    run = folder("run", plan, steps(seconds, count=1))
    text = refused(flowgraph("calibrate", run, "-o", "profile.toml"))
    if isinstance(value, float) or value == 0:
        assert "policy.update: seconds=" in text
        assert text.endswith(", but it may be any number above 0\n")
    elif value == 10**400:
        assert text.endswith("has more than 20 digits\n")
    else:
        assert text.endswith("line 1: time.nodes_s.policy.update: Input should be a valid number\n")
    assert len(text) < 130


@pytest.mark.parametrize(
    "metrics",
    ["", '{"step": 0}\n', '{"step": 0, "time": {"step_s": 2.0}}\n', steps({"policy.updates": 2.0}), steps({})],
    ids=["empty", "no time", "no nodes", "other nodes", "empty nodes"],
)
def test_a_run_that_measured_no_node_is_refused(flowgraph: Run, plan: Any, metrics: str) -> None:
    text = refused(flowgraph("calibrate", folder("run", plan, metrics), "-o", "profile.toml"))
    first, hint = text.splitlines()
    assert first == "run: has measured no seconds of a node that is forecast"
    host = {"score", "group_normalize", "policy.mismatch"}
    assert set(hint.removeprefix("  hint: what is forecast: ").split(", ")) == set(forecast(plan)) | host


def test_a_node_whose_seconds_are_not_forecast_is_refused(flowgraph: Run, plan: Any) -> None:
    metrics = slower(plan, 1.25)
    next(each for each in plan["placed"] if each["role"] == "policy.sample")["running"]["cache_share"] = 0.001
    text = refused(flowgraph("calibrate", folder("run", plan, metrics), "-o", "profile.toml"))
    assert "policy.generate" in text


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("run.csv", "node,seconds\npolicy.update,3\n", "run.csv: holds no run"),
        ("run.json", "{}", "run.json: flow: Field required"),
        ("nowhere", None, "nowhere: holds no run"),
    ],
)
def test_what_is_no_runs_folder_is_named(flowgraph: Run, name: str, content: str | None, why: str) -> None:
    if content is not None:
        Path(name).write_text(content)
    assert refused(flowgraph("calibrate", name, "-o", "profile.toml")).startswith(why)


def test_a_run_without_its_files_says_which(flowgraph: Run, plan: Any) -> None:
    text = refused(flowgraph("calibrate", folder("bare", None, slower(plan, 1.0)), "-o", "profile.toml"))
    assert text == "bare/plan.json: cannot be read: No such file or directory\n"
    text = refused(flowgraph("calibrate", folder("silent", plan, None), "-o", "profile.toml"))
    assert "silent" in text
    text = refused(flowgraph("calibrate", folder("broken", plan, "{]\n" + slower(plan, 1.0)), "-o", "profile.toml"))
    assert "broken/metrics.jsonl" in text


def test_a_run_of_a_plan_without_seconds_says_how_to_get_one(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "grpo", "--cluster", "laptop", "--memory", "4GiB", "-o", "laptop.json"))
    plan = json.loads(Path("laptop.json").read_text())
    run = folder("run", plan | {"step": None}, steps({"policy.update": 2.0}))
    text = refused(flowgraph("calibrate", run, "-o", "profile.toml"))
    assert text.startswith("run/plan.json: forecasts no seconds, so there is nothing to fit")
    nominal = folder("nominal", plan, steps({"policy.update": 2.0}))
    assert refused(flowgraph("calibrate", nominal, "-o", "profile.toml")) == (
        "nominal/plan.json: the speed of laptop/0, a cpu, is not known, so there is nothing to fit\n"
    )


def test_one_bad_run_of_several_writes_nothing(flowgraph: Run, plan: Any) -> None:
    good, bad = folder("good", plan, slower(plan, 1.2)), folder("bad", plan, slower(plan, 1.0, **{"policy.update": -1}))
    assert "bad" in refused(flowgraph("calibrate", good, bad, "-o", "profile.toml"))


def test_a_profile_that_cannot_be_written_is_told(flowgraph: Run, plan: Any) -> None:
    text = refused(flowgraph("calibrate", folder("run", plan, slower(plan, 1.2)), "-o", "nowhere/profile.toml"), 2)
    assert text == "nowhere/profile.toml: cannot be written: No such file or directory\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[fsdp]\nmatmul_share = 7\n", "profile.toml: fsdp.matmul_share=7, but it may be 0.4 to 1.1"),
        ("[fsdp]\nmatmul_share = nan\n", "profile.toml: fsdp.matmul_share=nan, but it may be 0.4 to 1.1"),
        ("fsdp = [", "profile.toml: no TOML"),
    ],
)
def test_a_profile_that_was_edited_out_of_bounds_is_refused(flowgraph: Run, text: str, why: str) -> None:
    Path("profile.toml").write_text(text)
    said = flowgraph("plan", "grpo", *ASKED, *LENGTHS, "--profile", "profile.toml")
    assert (said.code, said.out) == (1, ""), said
    assert said.err.startswith(why)


def test_a_plan_is_calibrated_by_what_another_system_took_for_its_nodes(flowgraph: Run, plan: Any) -> None:
    Path("plan.json").write_text(json.dumps(plan))
    generate = next(task for task in plan["step"]["tasks"] if task["name"] == "policy.generate")
    seconds = 1.2 * sum(generate["parts"].values())
    said = flowgraph("calibrate", "plan.json", "--measured", f"policy.generate={seconds}", "-o", "profile.toml")
    assert said.code == 0, said.err
    assert "before  median |error| 16.7%" in said.out and Path("profile.toml").is_file()


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ((), "is a plan, which says nothing of what a run of it took"),
        (("policy.generate",), "should be NODE=SECONDS"),
        (("policy.generate=-1",), "--measured policy.generate: seconds=-1.0, but it may be any number above 0"),
        (("nobody=1",), "plan.json: has measured no seconds of a node that is forecast"),
    ],
)
def test_a_plan_without_good_seconds_is_not_calibrated(
    flowgraph: Run, plan: Any, measured: tuple[str, ...], why: str
) -> None:
    Path("plan.json").write_text(json.dumps(plan))
    said = flowgraph("calibrate", "plan.json", *(part for each in measured for part in ("--measured", each)))
    assert said.code != 0 and said.out == ""
    assert why in said.err and "Traceback" not in said.err
