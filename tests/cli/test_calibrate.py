"""`calibrate`: scales fitted to what runs and logs have measured, what they repair, and nothing on failure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kept_plans import write_plan
from tests.cli.said import text_of

Run = Callable[..., Any]
ASKED = ("--cluster", "1x8xh100", "--model", "Qwen/Qwen3-0.6B", "--batch", "64")
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=1k,max=4k")
FACTS = {"flow": "grpo", "metrics": {}, "status": "done", "steps": 4, "steps_done": 4, "data": {"name": "digits"}}


def refused(said: Any, code: int = 1) -> str:
    """Return the error's text; nothing is on stdout or written, and there is no traceback."""
    assert (said.code, said.out) == (code, ""), said
    assert "Traceback" not in said.err
    assert not Path("scales.json").exists()
    text: str = said.err
    return text


@pytest.fixture
def plan(flowgraph: Run) -> dict[str, Any]:
    """Return the plan of GRPO, as it is written to plan.json."""
    written: dict[str, Any] = json.loads(write_plan(flowgraph, "plan", "grpo", *ASKED, *LENGTHS))
    return written


def forecast(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that a plan forecasts of each node that a model does."""
    kinds = {"generate", "logprob", "update"}
    return {each["name"]: sum(each["parts"].values()) for each in plan["step"]["tasks"] if each["kind"] in kinds}


def steps(seconds: Mapping[str, Any], count: int = 4) -> str:
    """Return the metrics of a run whose nodes took so long in each step, and ten times as long in the first."""
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
    """Return the metrics of a run that took so many times what its plan forecasts."""
    return steps({name: times * each for name, each in forecast(plan).items()} | more)


def scales_of(text: str) -> dict[tuple[str, str], float]:
    """Return the factors of a calibration's JSON by phase and role."""
    return {(each["phase"], each["role"]): each["factor"] for each in json.loads(text)["scales"]}


def test_the_misses_before_and_after_are_printed_and_the_scales_are_written(flowgraph: Run, plan: Any) -> None:
    said = flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "-o", "scales.json")
    lines, count = text_of(said).splitlines(), len(forecast(plan))
    assert lines[0] == f"before  median |error| 20.0%, bias -20.0%, worst 20% of {count}"
    assert float(re.findall(r"[0-9.]+(?=%)", lines[1])[0]) < 5
    assert lines[2] == "h100-sxm-80g"
    assert said.err == "scales.json\n"
    written = json.loads(Path("scales.json").read_text())
    assert written["source"] == "run"
    scales = scales_of(Path("scales.json").read_text())
    assert {phase for phase, _ in scales} == {"generate", "forward", "update", "sync", "host"}
    for key in (("generate", "policy.sample"), ("update", "policy.train"), ("forward", "ref.infer")):
        assert 1.15 < scales[key] <= 1.25
    for each in written["scales"]:
        assert each["low"] < each["factor"] < each["high"]


def test_as_json_it_is_the_same(flowgraph: Run, plan: Any) -> None:
    run = folder("run", plan, slower(plan, 1.25))
    told = json.loads(text_of(flowgraph("calibrate", run, "-o", "scales.json", "--json")))
    assert told["calibration"] == json.loads(Path("scales.json").read_text())
    assert told["after"]["median"] < told["before"]["median"] == pytest.approx(0.2)
    assert (told["far"], told["unused"]) == ({}, {})


def test_a_calibration_scales_the_next_plan_which_names_it(flowgraph: Run, plan: Any) -> None:
    text_of(flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "-o", "scales.json"))
    said = flowgraph("plan", "grpo", *ASKED, *LENGTHS, "--calibration", "scales.json", "-o", "next.json")
    assert "calibrated on h100-sxm-80g by run: generate policy.sample ×1.2" in said.err
    there = json.loads(Path("next.json").read_text())
    assert there["assumed"]["calibration"] == json.loads(Path("scales.json").read_text())
    before, after = forecast(plan), forecast(there)
    factors = scales_of(Path("scales.json").read_text())
    ratio = factors["generate", "policy.sample"]
    assert after["policy.generate"] == pytest.approx(ratio * before["policy.generate"], rel=0.02)
    text_of(flowgraph("explain", "next.json", "policy.sample"))
    again = flowgraph("plan", "grpo", "--plan", "next.json", "-o", "again.json")
    assert again.code == 0 and json.loads(Path("again.json").read_text())["step"] == there["step"]


def test_a_plan_from_a_file_is_forecast_again_with_a_calibration(flowgraph: Run, plan: Any) -> None:
    text_of(flowgraph("calibrate", folder("run", plan, slower(plan, 1.25)), "-o", "scales.json"))
    text_of(flowgraph("plan", "grpo", "--plan", "plan.json", "--calibration", "scales.json", "-o", "again.json"))
    assert json.loads(Path("again.json").read_text())["step"]["period_s"] > 1.1 * plan["step"]["period_s"]


def test_seconds_measured_on_a_plan_are_used_in_the_search(flowgraph: Run, plan: Any) -> None:
    seconds = 2 * forecast(plan)["policy.generate"]
    asked = ("--measured", f"policy.generate={seconds}", "--measured-on", "plan.json")
    text_of(flowgraph("plan", "grpo", *ASKED, *LENGTHS, *asked, "-o", "next.json"))
    there = json.loads(Path("next.json").read_text())
    assert there["assumed"]["calibration"]["source"] == f"policy.generate={seconds} on plan.json"
    assert there["step"]["period_s"] > 1.2 * plan["step"]["period_s"]
    text_of(flowgraph("plan", "grpo", "--plan", "plan.json", "--measured", f"step={2 * plan['step']['period_s']}"))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("--measured", "policy.generate=9"), "does not say which plan took these seconds"),
        (("--measured-on", "plan.json"), "needs seconds that were measured with it"),
        (
            ("--measured", "step=9", "--measured-on", "plan.json", "--plan", "plan.json"),
            "cannot be combined with --plan",
        ),
        (
            ("--measured", "step=9", "--measured-on", "plan.json", "--calibration", "scales.json"),
            "cannot be combined with --calibration",
        ),
        (("--measured", "policy.generate=9", "--measured", "nobody=1", "--measured-on", "plan.json"), "for `nobody`"),
        (
            ("--measured", "step=9", "--measured-on", "nowhere.json"),
            "nowhere.json: this file does not exist",
        ),
        (("--calibration", "nowhere.json"), "nowhere.json: cannot be read: No such file or directory"),
    ],
)
def test_what_is_ambiguous_is_refused(flowgraph: Run, plan: Any, asked: tuple[str, ...], why: str) -> None:
    assert plan
    said = flowgraph("plan", "grpo", *(() if "--plan" in asked else (*ASKED, *LENGTHS)), *asked)
    assert (said.code, said.out) == (2, ""), said
    assert why in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("[fsdp]", "it is not JSON"),
        ("{}", "source: Field required"),
        ('{"source": "x", "scales": []}', "scales: "),
        ('{"source": "x", "scale": []}', "scale"),
        (
            '{"source": "x", "scales": [{"phase": "gen", "device": "h100", "factor": 1, "low": 1, "high": 1}]}',
            "scales[0].phase",
        ),
        (
            '{"source": "x", "scales": [{"phase": "sync", "device": "h100", "factor": 1e9, "low": 1, "high": 1e9}]}',
            "scales[0].factor",
        ),
        (
            '{"source": "x", "scales": [{"phase": "sync", "device": "h100", "factor": 2, "low": 3, "high": 4}]}',
            "the factor must lie between",
        ),
    ],
)
def test_a_file_that_is_not_a_calibration_is_refused(flowgraph: Run, text: str, why: str) -> None:
    Path("c.json").write_text(text)
    said = flowgraph("plan", "grpo", *ASKED, *LENGTHS, "--calibration", "c.json")
    assert (said.code, said.out) == (1, ""), said
    assert said.err.startswith("c.json: is not a calibration: ") and why in said.err and "Traceback" not in said.err


def test_a_log_of_verl_calibrates_the_plan_it_is_of(flowgraph: Run, plan: Any) -> None:
    seconds = {name: 1.5 * each for name, each in forecast(plan).items()}
    timers = {"gen": "policy.generate", "old_log_prob": "policy.logprobs", "ref": "ref.logprobs"}
    timers |= {"update_actor": "policy.update"}
    parts = [f"timing_s/{timer}:{seconds[name]}" for timer, name in timers.items()]
    line = " - ".join(("step:2", "actor/loss:0.1", *parts, "timing_s/testing:3.0"))
    Path("v.log").write_text(f"(TaskRunner pid=3) {line}\n")
    said = flowgraph("calibrate", "v.log", "--plan", "plan.json", "-o", "scales.json")
    assert text_of(said).startswith("before  median |error| 33.3%")
    assert "not used: v.log timing_s/testing: not a timer that is known" in said.err
    assert "not used: v.log: 1 metric of other names" in said.err
    alone = flowgraph("calibrate", "v.log")
    assert (alone.code, alone.out) == (2, "")
    assert alone.err.startswith("calibrate v.log: contains no measured seconds")


def test_a_trace_calibrates_the_plan_it_is_of(flowgraph: Run, plan: Any) -> None:
    update_s = 1.5 * forecast(plan)["policy.update"]
    event = {"name": "train-0-policy.update", "ph": "X", "ts": 0, "dur": 1e6 * update_s, "pid": 1, "tid": 1}
    Path("t.json").write_text(json.dumps({"traceEvents": [event, event | {"name": "aten::mm"}]}))
    said = flowgraph("calibrate", "t.json", "--plan", "plan.json")
    assert text_of(said).startswith("before  median |error| 33.3%")
    assert said.err == "not used: t.json: 1 range of other names\n"


def test_of_two_runs_the_one_that_is_far_off_is_named(flowgraph: Run, plan: Any) -> None:
    update = forecast(plan)["policy.update"]
    runs = [
        folder("right", plan, steps({"policy.update": update})),
        folder("slip", plan, steps({"policy.update": 100 * update})),
    ]
    lines = text_of(flowgraph("calibrate", *runs)).splitlines()
    assert lines[-1] == "far off: slip policy.update took 100 times its forecast, so its seconds may be wrong"


def test_a_node_is_measured_once(flowgraph: Run, plan: Any) -> None:
    twice = ("--measured", "policy.update=3", "--measured", "policy.update=4")
    assert refused(flowgraph("calibrate", "plan.json", *twice), 2) == (
        "--measured policy.update=3: `policy.update` is given twice\n  hint: leave one of them out\n"
    )


@pytest.mark.parametrize("value", [-1.0, 0, float("nan"), float("inf"), "3", True, [1, 2], 10**400])
def test_seconds_that_cannot_be_are_refused(flowgraph: Run, plan: Any, value: Any) -> None:
    seconds = forecast(plan) | {"policy.update": value}
    run = folder("run", plan, steps(seconds, count=1))
    text = refused(flowgraph("calibrate", run, "-o", "scales.json"))
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
    text = refused(flowgraph("calibrate", folder("run", plan, metrics), "-o", "scales.json"))
    first, hint = text.splitlines()
    assert first == "run: has no measured seconds of a node with a forecast"
    host = {"score", "group_normalize", "policy.mismatch", "sync", "step"}
    assert set(hint.removeprefix("  hint: what is forecast: ").split(", ")) == set(forecast(plan)) | host


def test_a_node_whose_seconds_are_not_forecast_is_refused(flowgraph: Run, plan: Any) -> None:
    metrics = slower(plan, 1.25)
    next(each for each in plan["placed"] if each["role"] == "policy.sample")["running"]["cache_share"] = 0.001
    text = refused(flowgraph("calibrate", folder("run", plan, metrics), "-o", "scales.json"))
    assert "policy.generate" in text


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("run.csv", "node,seconds\npolicy.update,3\n", "run.csv: is not JSON"),
        ("run.json", "{}", "run.json: flow: Field required"),
        ("nowhere", None, "nowhere: is not a run folder"),
    ],
)
def test_what_is_no_runs_folder_is_named(flowgraph: Run, name: str, content: str | None, why: str) -> None:
    if content is not None:
        Path(name).write_text(content)
    measured = () if content is None else ("--measured", "policy.update=3")
    assert refused(flowgraph("calibrate", name, *measured, "-o", "scales.json")).startswith(why)
    if content is not None:
        alone = refused(flowgraph("calibrate", name), 2)
        assert alone.startswith(f"calibrate {name}: contains no measured seconds")


def test_a_run_without_its_files_says_which(flowgraph: Run, plan: Any) -> None:
    text = refused(flowgraph("calibrate", folder("bare", None, slower(plan, 1.0)), "-o", "scales.json"))
    assert text == "bare/plan.json: cannot be read: No such file or directory\n"
    text = refused(flowgraph("calibrate", folder("silent", plan, None), "-o", "scales.json"))
    assert "silent" in text
    text = refused(flowgraph("calibrate", folder("broken", plan, "{]\n" + slower(plan, 1.0)), "-o", "scales.json"))
    assert "broken/metrics.jsonl" in text


def test_a_run_of_a_plan_without_seconds_says_how_to_get_one(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "grpo", "--cluster", "laptop", "--memory", "4GiB", "-o", "laptop.json"))
    plan = json.loads(Path("laptop.json").read_text())
    run = folder("run", plan | {"step": None}, steps({"policy.update": 2.0}))
    text = refused(flowgraph("calibrate", run, "-o", "scales.json"))
    assert text.startswith("run/plan.json: forecasts no seconds, so there is nothing to fit")
    nominal = folder("nominal", plan, steps({"policy.update": 2.0}))
    assert refused(flowgraph("calibrate", nominal, "-o", "scales.json")) == (
        "nominal/plan.json: the speed of laptop/0, a cpu, is not known, so there is nothing to fit\n"
    )


def test_one_bad_run_of_several_writes_nothing(flowgraph: Run, plan: Any) -> None:
    good, bad = folder("good", plan, slower(plan, 1.2)), folder("bad", plan, slower(plan, 1.0, **{"policy.update": -1}))
    assert "bad" in refused(flowgraph("calibrate", good, bad, "-o", "scales.json"))


def test_scales_that_cannot_be_written_are_reported(flowgraph: Run, plan: Any) -> None:
    text = refused(flowgraph("calibrate", folder("run", plan, slower(plan, 1.2)), "-o", "nowhere/scales.json"), 2)
    assert text == "nowhere/scales.json: cannot be written: No such file or directory\n"


def test_a_plan_is_calibrated_by_what_another_system_took_for_its_nodes(flowgraph: Run, plan: Any) -> None:
    Path("plan.json").write_text(json.dumps(plan))
    generate = next(task for task in plan["step"]["tasks"] if task["name"] == "policy.generate")
    seconds = 1.2 * sum(generate["parts"].values())
    said = flowgraph("calibrate", "plan.json", "--measured", f"policy.generate={seconds}", "-o", "scales.json")
    assert said.code == 0, said.err
    assert "before  median |error| 16.7%" in said.out and Path("scales.json").is_file()


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ((), "contains no measured seconds"),
        (("policy.generate",), "should be NODE=SECONDS"),
        (("policy.generate=-1",), "--measured policy.generate: seconds=-1.0, but it may be any number above 0"),
        (("nobody=1",), "plan.json: has no measured seconds of a node with a forecast"),
        (("policy.update=3", "nobody=1"), "--measured nobody=1: no seconds are forecast for `nobody`"),
    ],
)
def test_a_plan_without_good_seconds_is_not_calibrated(
    flowgraph: Run, plan: Any, measured: tuple[str, ...], why: str
) -> None:
    Path("plan.json").write_text(json.dumps(plan))
    said = flowgraph("calibrate", "plan.json", *(part for each in measured for part in ("--measured", each)))
    assert said.code != 0 and said.out == ""
    assert why in said.err and "Traceback" not in said.err
