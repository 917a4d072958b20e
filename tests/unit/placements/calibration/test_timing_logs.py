"""Logs of other systems as seconds by timer: formats, medians, what is named, and files that are none of these."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from flowgraph.errors import DataError
from placements.calibration.measured_runs import MeasuredRun, repair
from placements.calibration.timing_logs import read_log
from placements.calibration.timing_names import match_timings
from placements.search.plan_builder import homes_of_blocks
from tests.looped import looped
from tests.unit.placements.small_problems import found_of, lagging, problem_of

NAMES = {name: name for name in ("policy.generate", "policy.update", "score, group_normalize")}
CONSOLE = """(TaskRunner pid=71) Training Progress: 1/3
(TaskRunner pid=71) step:1 - actor/loss:0.1 - timing_s/gen:90.0 - timing_s/step:200.0
\x1b[36m(TaskRunner pid=71)\x1b[0m step:2 - actor/loss:0.2 - timing_s/gen:np.float64(10.5) - timing_s/step:30
step:3 - actor/loss:nan - timing_s/gen:11.5 - timing_s/step:32.0 - timing_s/testing:7"""


def verl_lines(*steps: dict[str, Any]) -> str:
    """Return what verl's file logger writes."""
    return "".join(json.dumps({"step": place, "data": data}) + "\n" for place, data in enumerate(steps, 1))


def test_verls_console_is_read_whatever_stands_before_a_step() -> None:
    log = read_log(CONSOLE, "v.log", {})
    assert (log.system, log.steps, log.other, log.unreadable) == ("verl", 3, 1, ())
    assert log.seconds == {"timing_s/gen": 11.0, "timing_s/step": 31.0, "timing_s/testing": 7.0}


def test_verls_json_lines_say_the_same_and_a_torn_last_line_is_left_out() -> None:
    text = verl_lines({"timing_s/gen": 90.0, "loss": 1.0}, {"timing_s/gen": 10.5}, {"timing_s/gen": 11.5})
    assert read_log(text + '{"step": 4, "da', "m.jsonl", {}).seconds == {"timing_s/gen": 11.0}
    with pytest.raises(DataError, match=r"^m\.jsonl:2: is not JSON"):
        read_log(text.replace('{"step": 2', '{"step" 2'), "m.jsonl", {})


def test_metrics_of_nemo_rl_are_tables_of_steps() -> None:
    steps = {"timing/train/generation": {"1": 80.0, "2": 40.0, "10": 42.0}, "train/loss": {"1": 0.5}}
    log = read_log(json.dumps(steps), "m.json", {})
    assert (log.system, log.seconds, log.other) == ("NeMo RL", {"timing/train/generation": 41.0}, 1)


def test_a_flat_line_of_a_tracker_is_read_too() -> None:
    log = read_log('{"_step": 1, "timing/train/generation": 41.0}\n', "history.jsonl", {})
    assert log.seconds == {"timing/train/generation": 41.0}


def test_a_timer_whose_value_is_no_number_is_named() -> None:
    log = read_log(verl_lines({"timing_s/gen": "fast", "timing_s/step": 3.0, "timing_s/ref": True}), "m", {})
    assert (log.unreadable, log.seconds) == (("timing_s/gen", "timing_s/ref"), {"timing_s/step": 3.0})


def ranged(name: Any, start_s: float, seconds: float, *, pid: int = 2, tid: int = 1) -> dict[str, Any]:
    """Return a range of a Chrome trace."""
    return {"name": name, "ph": "X", "ts": 1e6 * start_s, "dur": 1e6 * seconds, "pid": pid, "tid": tid}


def test_a_trace_has_the_slowest_rank_of_each_step_and_no_forecast() -> None:
    named = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grpo, predicted"}}
    events = [
        named,
        ranged("policy.update", 0, 99, pid=1),
        ranged("policy.update", 0, 9),
        ranged("policy.update", 20, 4),
        ranged("train-1-policy.update", 20, 5, tid=2),
        ranged("policy.update", 40, 3),
        ranged("aten::mm", 40, 1),
        ranged("score, group_normalize", 50, 0.5),
    ]
    for text in (json.dumps({"traceEvents": events}), json.dumps(events)):
        log = read_log(text, "t.json", NAMES)
        assert (log.system, log.other, log.steps) == ("trace", 1, 3)
        assert log.seconds == {"policy.update": 3.5, "score, group_normalize": 0.5}


@looped(
    "text, why",
    [
        ("", "has no known timers"),
        ("a log\nwithout steps\n", "has no known timers"),
        ("{}", "has no known timers"),
        ('{"timing_s/gen": {"1": "x"}}', "has no seconds: timing_s/gen are not numbers"),
        ('{"traceEvents": 3}', "is not a Chrome trace"),
        ('{"traceEvents": [3]}', "is not a Chrome trace"),
        ("[]", "is a Chrome trace without a range of the plan's nodes"),
        ('{"traceEvents": [{"ph": "X", "name": 3, "dur": "x"}]}', "is a Chrome trace without a range"),
        ("{" * 500, "is not JSON"),
        ("step:1 - timing_s/gen:x", "has no seconds"),
        ("step:1 - timing_s/gen:-3", "has no seconds"),
        ("step:1 - timing_s/gen:inf", "has no seconds"),
    ],
)
def test_text_that_is_no_log_is_refused(text: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_log(text, "file", NAMES)


def test_timers_of_verl_are_nodes_of_ppo() -> None:
    names = ("gen", "old_log_prob", "ref", "values", "update_actor", "update_critic", "reward", "adv", "step")
    more = {"update_weights": 2.0, "testing": 9.0, "generate_sequences": 3.0}
    log = read_log(
        verl_lines({f"timing_s/{name}": 1.0 for name in names} | {f"timing_s/{k}": v for k, v in more.items()}), "m", {}
    )
    found = match_timings(log, problem_of("ppo"))
    nodes = {timing.label.removeprefix("timing_s/"): timing.names for timing in found.timings}
    assert {name: nodes[name] for name in names if name not in ("adv", "old_log_prob")} == {
        "gen": ("policy.generate",),
        "ref": ("ref.logprobs",),
        "values": ("critic.critic_values",),
        "update_actor": ("policy.update",),
        "update_critic": ("critic.update",),
        "reward": ("score",),
        "step": ("step",),
    }
    assert "gae" in nodes["adv"] and "score" not in nodes["adv"]
    assert nodes["update_weights"] == ("sync",)
    assert found.unused == {
        "timing_s/old_log_prob": "the flow has no policy forward",
        "timing_s/testing": "not a timer that is known",
        "timing_s/generate_sequences": "part of gen",
    }


def test_timers_of_nodes_that_a_flow_lacks_are_named() -> None:
    log = read_log(verl_lines({"timing_s/values": 1.0, "timing_s/gen": 0.0}), "m", {})
    assert match_timings(log, problem_of("grpo")).unused == {
        "timing_s/values": "the flow has no critic forward",
        "timing_s/gen": "it is 0 s",
    }


def test_where_steps_overlap_verls_gen_is_a_wait_and_not_used() -> None:
    log = read_log(verl_lines({"timing_s/gen": 3.0, "timing_s/step": 9.0}), "m", {})
    found = match_timings(log, replace(problem_of(lagging), staleness=1))
    assert [timing.label for timing in found.timings] == ["timing_s/step"]
    assert "waits for" in found.unused["timing_s/gen"]


def test_timers_of_nemo_rl_calibrate_a_plan() -> None:
    problem = problem_of("grpo")
    homes = tuple(homes_of_blocks(problem, found_of("grpo").best.blocks))
    metrics = {
        "generation": 30.0,
        "policy_and_reference_logprobs": 3.0,
        "policy_training": 9.0,
        "total_step_time": 50.0,
    }
    text = json.dumps({f"timing/train/{name}": {"1": seconds} for name, seconds in metrics.items()})
    found = match_timings(read_log(text, "m", {}), problem)
    assert {name for timing in found.timings for name in timing.names} >= {"ref.logprobs", "policy.generate", "step"}
    repaired = repair([MeasuredRun("m", problem, homes, found.timings)], "m")
    assert repaired.after.median < repaired.before.median


def test_damaged_logs_are_read_or_refused_and_nothing_else() -> None:
    """Texts with random cuts and junk in them: seconds, or an error that names the file."""
    chance, refusals = Random(0), list[str]()
    junk = ("null", "[]", "{}", "-1", "1e999", "NaN", '"x"', "\x00", "9" * 30, ":", ",", "{", "[", "\n", " - ", "")
    trace = json.dumps([ranged("policy.update", 0, 1)])
    texts = (CONSOLE, verl_lines({"timing_s/gen": 1.0}, {"timing_s/gen": 2.0}), trace)
    for _ in range(500):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice(junk) + text[place + chance.choice((0, 3)) :]
        try:
            read_log(text, "file", NAMES)
        except DataError as error:
            refusals.append(str(error))
    assert refusals and all(text.startswith("file") for text in refusals)
