"""Published runs read by their columns, their workload files, and the planner's forecast of their steps."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import pytest

from benchmarks.forecast.__main__ import MEASURED
from benchmarks.forecast.report import errors
from benchmarks.forecast.rl import cases_of, files, ratios, scaled, workload_text
from benchmarks.forecast.rl_names import Degrees, device, machine_devices, model, placing
from benchmarks.forecast.rl_orders import cases_of as orders
from benchmarks.forecast.rl_rows import Read, read_end_to_end, read_nemo_rl
from benchmarks.forecast.rl_steps import homes_of_workload, problem_of, seconds_of, step
from benchmarks.forecast.rl_workloads import FOLDER, Workload, from_toml, read, to_toml
from flowgraph.cluster.plan import StepForecast
from placements.hardware.engine_constants import host_constants
from tests.looped import looped


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


NEMO_RL, END_TO_END = rows("rl_nemo_rl.csv"), rows("rl_end2end.csv")

DRIVEN = 1 + host_constants().driver_share


def nemo_rl(changes: Mapping[str, str]) -> Workload:
    found = read_nemo_rl({**NEMO_RL[0], **changes}).workload
    assert found is not None
    return found


def end_to_end(changes: Mapping[str, str]) -> Read:
    first = next(row for row in END_TO_END if row["prompts_per_step"] and row["metric"] == "step")
    return read_end_to_end({**first, **changes})


def forecast(workload: Workload) -> StepForecast:
    found = step(workload)
    assert isinstance(found, StepForecast), found
    return found


# ------------------------------------------------------------------------------------------- names


@looped(
    "text, name",
    [
        ("Qwen3-30B3A", "Qwen/Qwen3-30B-A3B"),
        ("Qwen3-30B-A3B-Base", "Qwen/Qwen3-30B-A3B"),
        ("Qwen3-32B", "Qwen/Qwen3-32B"),
        ("DeepSeek V3", "deepseek-ai/DeepSeek-V3"),
        ("R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B"),
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("Qwen2.5-VL-7B", "Qwen/Qwen2.5-7B"),
        ("13B", "meta-llama/Llama-2-13b-hf"),
        ("Qwen", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_any_name_that_tells_its_size(text: str, name: str | None) -> None:
    assert model(text) == name


def test_a_machine_of_a_rack_has_four_devices_and_any_other_eight() -> None:
    found = {name: device(name) for name in ("GB200", "H100-80GB (paper; repo figure does not restate)", "B200")}
    assert [machine_devices(each) for each in found.values() if each is not None] == [4, 8, 8]


@looped(
    "text, form, lag, devices",
    [
        ("On policy", "together", 0, (None, None)),
        ("8-step Off", "apart", 8, (None, None)),
        ("one-step-off 4 gen : 12 train", "apart", 1, (4, 12)),
        ("fully async 16 rollout:16 train", "apart", 1, (16, 16)),
        ("stream off policy 64:64 (staleness 0)", "apart", 0, (64, 64)),
        ("colocate hybrid engine", "together", 0, (None, None)),
        ("colocate MTP depth 3 accept 77.3%", "together", 0, (None, None)),
        ("moved about", "", 0, (None, None)),
    ],
)
def test_a_text_tells_where_roles_run(text: str, form: str, lag: int, devices: tuple[int | None, int | None]) -> None:
    found = placing(text)
    assert (found.form, found.lag, (found.draw, found.train)) == (form, lag, devices)
    assert bool(found.why) == (form == "" or "MTP" in text)


def test_degrees_that_do_not_divide_the_devices_give_no_layout() -> None:
    assert Degrees(tensor=4, pipeline=2).layout(12, "megatron", trains=True) is None
    found = Degrees(tensor=2, expert=8).layout(8, "megatron", trains=True)
    assert found is not None
    assert (found.data, found.expert, found.sharding) == (4, 4, "optimizer")


# ------------------------------------------------------------------------------------------- rows


def test_a_row_of_nemo_rl_says_pools_layouts_and_lag() -> None:
    found = nemo_rl({"policy_mode": "1-step Off", "gpus": "16", "gen_tp_pp": "[2,1]", "precision": "fp8"})
    assert found.cluster == "2x8xh100-sxm-80g"
    assert found.pools == {"draw": 8, "train": 8}
    assert found.settings == ("samples=32", "lag=1", "policy.update.minibatch=16")
    assert found.roles["policy.sample"].cut == Degrees(tensor=2)
    assert found.roles["policy.train"].cut == Degrees(pipeline=2)
    assert found.precision == "fp8"


def test_every_role_of_a_stated_layout_runs_as_the_row_says() -> None:
    found = nemo_rl({})
    homes = homes_of_workload(found, problem_of(found))
    assert not isinstance(homes, str)
    assert {home.role.name: (home.pool, home.layout.devices) for home in homes} == {
        "policy.train": ("all", 16),
        "policy.sample": ("all", 16),
        "ref.infer": ("all", 16),
    }
    assert {home.layout.pipeline for home in homes if home.role.use != "sample"} == {2}


@looped(
    "changes, why",
    [
        ({"prompts_per_step": ""}, "no prompts of a step"),
        ({"model": "Gemini"}, "no model"),
        ({"gpu": "TPU v5"}, "no device"),
        ({"max_resp_len": ""}, "no lengths"),
        ({"quality": "eye"}, "read off a figure (eye)"),
        ({"unit": "PFLOP/s"}, "no seconds (PFLOP/s)"),
        ({"metric": "wait_prev_gen"}, "metric wait_prev_gen"),
        ({"placement_mode": "moved about"}, "placement `moved about`"),
        (
            {"placement_mode": "fully async 16:16", "metric": "gen"},
            "gen: of runs that overlap, how long the trainer waits",
        ),
    ],
)
def test_a_row_that_says_too_little_says_what_is_missing(changes: Mapping[str, str], why: str) -> None:
    found = end_to_end(changes)
    assert found.workload is None
    assert found.why == why


def test_a_mean_length_is_guessed_only_where_the_row_has_none() -> None:
    assert end_to_end({}).guessed
    stated = end_to_end({"mean_resp_len": "2000", "prompt_len": "300"})
    assert not stated.guessed
    assert stated.workload is not None
    assert stated.workload.response_tokens == "mean=2000,max=28672"
    assert stated.workload.assumed == ()
    assert end_to_end({"mean_resp_len": "2000", "algorithm": "GRPO Search-R1"}).guessed


def test_devices_that_a_row_gives_as_shares_are_those_of_the_cluster() -> None:
    found = end_to_end({"placement_mode": "async 75:25", "n_gpus": "64"}).workload
    assert found is not None
    assert found.pools == {"draw": 48, "train": 16}


def test_hours_of_many_steps_are_seconds_of_one() -> None:
    assert end_to_end({"metric": "time_400_steps", "value": "40", "unit": "h"}).seconds == 360.0


# ------------------------------------------------------------------------------------------- workload files


def test_the_workload_files_are_what_the_rows_make() -> None:
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.toml")} == files()


def test_a_workload_is_read_as_it_was_written() -> None:
    for path in FOLDER.glob("*.toml"):
        assert to_toml(read(path)) == path.read_text("utf-8")
    odd = replace(nemo_rl({}), label='a "quoted" \\ name', measured={"forward_pass(logprob policy+ref)": 1.5})
    assert from_toml(to_toml(odd)) == odd


def test_a_workload_can_be_forecast_by_hand() -> None:
    found = nemo_rl({})
    text = workload_text(replace(found, measured={"step": 100.0}), forecast(found))
    assert text.splitlines()[-1].strip() == found.command
    assert "measured step 100 s, forecast" in text


# ------------------------------------------------------------------------------------------- forecasts


def test_a_step_that_does_not_overlap_has_its_phases_one_after_another_and_little_else() -> None:
    """What else a step has are host work, syncs and switches, and what the driver does between steps."""
    found = forecast(nemo_rl({}))
    phases = [seconds_of(found, each) or 0.0 for each in ("gen", "old_log_prob", "ref", "update_actor")]
    step_s = seconds_of(found, "step")
    assert step_s is not None
    assert sum(phases) < step_s <= DRIVEN * sum(task.seconds or 0.0 for task in found.tasks) * (1 + 1e-9)
    assert seconds_of(found, "values") is None


def test_a_step_that_overlaps_takes_no_longer_than_its_parts_one_after_another() -> None:
    together, apart = (forecast(nemo_rl({"policy_mode": mode})) for mode in ("On policy", "1-step Off"))
    models = [task.seconds or 0.0 for task in together.tasks if task.kind in ("generate", "logprob", "update")]
    assert (together.period_s or 0.0) > sum(models)
    assert (apart.period_s or 0.0) < sum(task.seconds or 0.0 for task in apart.tasks)


def test_a_scale_is_fitted_without_the_run_that_it_is_held_against() -> None:
    reads = [read_nemo_rl(row) for row in NEMO_RL[:3]]
    plain, fitted = list(cases_of(reads)), list(scaled(cases_of(reads)))
    others = [case.measured / (case.forecast or 1.0) for case in plain[1:]]
    assert fitted[0].forecast == pytest.approx((plain[0].forecast or 0.0) * median(others), rel=0.05)
    assert next(iter(scaled(plain[:1]))).why == "its framework has no other run"


@pytest.mark.slow(group="planner")
def test_systems_of_a_figure_are_put_in_the_order_that_was_measured() -> None:
    """Source: openpsi-project/ReaLHF, docs/source/images/vws.svg: all four models of 7B on 16 H100."""
    setting = [row for row in END_TO_END if row["unit"].startswith("PFLOP") and "all four" in row["model"]][:4]
    found = {case.label.partition(":")[0]: case.forecast for case in orders(setting)}
    assert found["ReaL over OpenRLHF"] == 1.0
    assert found["ReaL over DeepSpeed-Chat"] == 1.0
    assert found["ReaL-Heuristic over OpenRLHF"] == 1.0


def test_steps_of_nemo_rl_are_forecast_with_one_scale() -> None:
    """Source: NVIDIA-NeMo/RL, docs/about/performance-summary.md, of which half is here."""
    found = errors(list(scaled(cases_of([read_nemo_rl(row) for row in NEMO_RL]))))
    assert found is not None
    assert found.count == len(NEMO_RL)
    assert found.median <= 0.15


def test_what_overlap_gains_is_nearer_than_nothing() -> None:
    cases = list(ratios([read_nemo_rl(row) for row in NEMO_RL]))
    ours, none = errors(cases), errors(cases, null=True)
    assert ours is not None
    assert none is not None
    assert ours.median < none.median
