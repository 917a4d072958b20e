"""The planner on the command line: plans with their seconds, what is asked of them, and each bad question refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.cluster.plan import Plan
from flowgraph.engines.table import engines_for
from tests.cli.kept_plans import write_plan
from tests.cli.said import text_of

SAMPLERS = ", ".join(sorted(engines_for("sample")))
Run = Callable[..., Any]
Golden = Callable[[str, str], None]
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=2k,max=8k")
LARGE = ("--cluster", "2x8xh100", "--model", "Qwen/Qwen3-8B", "--batch", "512", *LENGTHS)
ASKED = ("--cluster", "1x8xh100", "--batch", "64", *LENGTHS)
SMALL = (*ASKED, "--model", "Qwen/Qwen3-0.6B")
PRICES = ("--cluster", "priced.toml", "--model", "Qwen/Qwen3-8B", "--batch", "64", *LENGTHS)
PRICED = """\
[[node]]
name = "h100"
count = 2
host_memory = "2TiB"
cores = 192
network = "400 GB/s"
price_per_hour = 24.0

[[node.device]]
model = "h100"
count = 8
"""
HEAVY = ("torch", "ray", "transformers", "sglang", "datasets")


def refused(said: Any, code: int) -> str:
    """Return the error's text; nothing is on stdout, and there is no traceback."""
    assert (said.code, said.out) == (code, ""), said
    assert "Traceback" not in said.err
    text: str = said.err
    return text


@pytest.fixture
def made(flowgraph: Run) -> Callable[..., dict[str, Any]]:
    """Return `made(flow, *arguments)`: the plan of a flow, as it is written to plan.json."""

    def make(
        flow: str = "grpo", *arguments: object, out: str = "plan.json", model: str = "Qwen/Qwen3-0.6B"
    ) -> dict[str, Any]:
        text = write_plan(flowgraph, "plan", flow, *ASKED, "--model", model, *arguments, out=out)
        written: dict[str, Any] = json.loads(text)
        return written

    return make


def write(plan: dict[str, Any]) -> str:
    """Write a plan to edited.json."""
    Path("edited.json").write_text(json.dumps(plan))
    return "edited.json"


# ---------------------------------------------------------------------------------------- what is printed


def test_plan_prints_the_best_plan_its_bytes_and_seconds_and_why_named_ones_lost(
    flowgraph: Run, golden: Golden
) -> None:
    said = flowgraph("plan", "grpo", *LARGE)
    golden(text_of(said), "cli/planner_plan.txt")
    assert "the flow cuts responses at policy.generate.max_tokens=256; these go up to 8,000\n" in said.err


def test_a_critic_and_a_lag_make_pools_of_their_own(flowgraph: Run, golden: Golden) -> None:
    golden(text_of(flowgraph("plan", "ppo", *LARGE)), "cli/planner_ppo.txt")
    golden(text_of(flowgraph("plan", "decoupled_ppo", *LARGE, "--staleness", 4)), "cli/planner_lag.txt")


def test_fit_prints_the_plan_of_the_fewest_devices(flowgraph: Run, golden: Golden) -> None:
    golden(text_of(flowgraph("fit", "grpo", *LARGE)), "cli/planner_fit.txt")


def test_a_plan_is_simulated_explained_and_compared(flowgraph: Run, golden: Golden) -> None:
    text_of(flowgraph("plan", "grpo", *LARGE, "-o", "one.json"))
    text_of(flowgraph("plan", "grpo", *LARGE, "--placement", "split", "-o", "split.json"))
    golden(text_of(flowgraph("simulate", "split.json")), "cli/planner_simulate.txt")
    golden(text_of(flowgraph("explain", "one.json")), "cli/planner_explain.txt")
    golden(text_of(flowgraph("explain", "one.json", "policy.sample")), "cli/planner_explain_role.txt")
    golden(text_of(flowgraph("compare", "one.json", "split.json")), "cli/planner_compare.txt")


def test_what_fits_nowhere_says_what_is_short_and_what_would_help(flowgraph: Run, golden: Golden) -> None:
    said = flowgraph("plan", "grpo", *LARGE, "--cluster", "1x1xh100")
    golden(refused(said, 1), "cli/planner_short.txt")


# ---------------------------------------------------------------------------------------- as data


def test_plan_as_json_has_the_plan_the_proof_the_runners_up_and_the_named_ones(flowgraph: Run) -> None:
    told = json.loads(text_of(flowgraph("plan", "grpo", *SMALL, "--json", "-o", "plan.json")))
    assert Plan.from_json(json.dumps(told["plan"])) == Plan.from_json(Path("plan.json").read_text())
    assert told["search"]["proven"] is True
    assert told["search"]["bound"] <= told["search"]["value"] == told["ranked"][0]["value"]
    assert (told["search"]["objective"], told["search"]["unit"]) == ("step", "s")
    assert told["ranked"][0]["step_s"] == told["plan"]["step"]["period_s"]
    assert set(told["named"]) == {
        "colocated:deepspeed-chat", "hybrid:verl", "split:openrlhf", "split:nemo-aligner", "standalone:each-role",
        "standalone:hybridflow",
    }  # fmt: skip
    roles = [role for pool in told["ranked"][0]["pools"] for role in pool["roles"]]
    assert sorted(roles) == ["policy.sample", "policy.train", "ref.infer"]


def test_values_as_json_are_in_the_unit_of_the_objective(flowgraph: Run) -> None:
    fewest = json.loads(text_of(flowgraph("plan", "grpo", *SMALL, "--objective", "devices", "--json")))
    assert fewest["search"]["unit"] == "devices"
    assert fewest["search"]["value"] == fewest["ranked"][0]["value"] == fewest["ranked"][0]["devices"] == 1
    Path("priced.toml").write_text(PRICED)
    cheapest = json.loads(text_of(flowgraph("plan", "ppo", *PRICES, "--objective", "cost", "--json")))
    assert cheapest["search"]["unit"] == "currency"
    per_hour = 24.0 / 8 * cheapest["ranked"][0]["devices"]
    assert cheapest["search"]["value"] == pytest.approx(per_hour * cheapest["ranked"][0]["step_s"] / 3600, rel=0.2)
    written = json.dumps([fewest, cheapest])
    assert "value_s" not in written


def test_each_objective_is_told_in_its_own_figures(flowgraph: Run) -> None:
    Path("priced.toml").write_text(PRICED)
    cheapest = text_of(flowgraph("plan", "ppo", *PRICES, "--objective", "cost", "--what-if", "batch=128"))
    cost = re.search(r"a step costs ([0-9.]+), ", cheapest)
    assert cost is not None
    assert re.search(r"^proven the cheapest of the layouts considered; \d+ plans simulated$", cheapest, re.MULTILINE)
    ranked = re.findall(r"^  \d  ([0-9.]+) a step  [0-9,]+ s +(|tie|\+\d+%)  ", cheapest, re.MULTILINE)
    assert [float(each) for each, _ in ranked] == sorted(float(each) for each, _ in ranked)
    assert ranked[0] == (cost[1], "") and len(ranked) == 5
    assert re.search(r"hybrid:verl +[0-9.]+ a step  [0-9,]+ s +the best", cheapest)
    assert re.search(r"colocated:deepspeed-chat +the same as hybrid:verl for this flow", cheapest)
    assert "your request excludes it" not in cheapest, "a faster plan that costs more is no better"
    assert re.search(r"standalone:each-role +[0-9.]+ a step  [0-9,]+ s +\+\d+%: it takes \d+ devices", cheapest)
    assert re.search(r"batch=128  [0-9.]+ a step  [0-9,]+ s  \+\d+%", cheapest)
    fewest = text_of(flowgraph("fit", "ppo", *PRICES))
    assert re.search(r"^proven the smallest of the layouts considered; \d+ plans simulated$", fewest, re.MULTILINE)


def test_what_moved_is_told_by_what_was_asked_for(flowgraph: Run) -> None:
    large = ("--cluster", "5x8xh100", "--model", "Qwen/Qwen3-8B", "--batch", "256", *LENGTHS)
    robust = text_of(flowgraph("plan", "ppo", *large, "--robust"))
    assert "\nit is not the fastest by the forecast, but loses least if costs differ from the forecast\n" in robust
    assert "your request excludes it" not in robust
    assert re.search(r"split:nemo-aligner +[0-9.]+ s +-\d+%: loses more if costs differ\n", robust)


def test_a_cost_is_not_asked_for_where_no_price_is_known(flowgraph: Run) -> None:
    text = refused(flowgraph("plan", "grpo", *SMALL, "--objective", "cost"), 2)
    assert text.endswith(
        "--objective cost: what h100-sxm-80g cost is not known\n"
        "  hint: set `price_per_hour` of each machine in the cluster file\n"
    )


def test_the_other_verbs_as_json(flowgraph: Run, made: Any) -> None:
    plan = made()
    simulated = json.loads(text_of(flowgraph("simulate", "plan.json", "--steps", 3, "--json")))
    assert simulated["period_s"] == plan["step"]["period_s"]
    assert {each["step"] for each in simulated["events"]} == {0, 1, 2}
    told = json.loads(text_of(flowgraph("explain", "plan.json", "--json")))
    assert [each["role"] for each in told] == ["policy.train", "policy.sample", "ref.infer"]
    assert all(each["step_s"] == pytest.approx(plan["step"]["period_s"]) for each in told)
    beside = json.loads(text_of(flowgraph("compare", "plan.json", "./plan.json", "--json")))
    assert beside["plan.json"] == plan
    fewest = json.loads(text_of(flowgraph("fit", "grpo", *SMALL, "--json")))
    assert fewest["ranked"][0]["devices"] == 1


def test_plans_of_one_name_in_two_folders_are_both_told(flowgraph: Run, made: Any) -> None:
    for folder in ("a", "b"):
        Path(folder).mkdir()
        made(out=f"{folder}/plan.json")
    assert set(json.loads(text_of(flowgraph("compare", "a/plan.json", "b/plan.json", "--json")))) == {
        "a/plan.json", "b/plan.json",
    }  # fmt: skip


def test_simulate_writes_a_trace_that_a_browser_shows(flowgraph: Run, made: Any) -> None:
    plan = made()
    text_of(flowgraph("simulate", "plan.json", "-o", "trace.json"))
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {each["name"] for each in plan["step"]["tasks"]} <= {each["name"] for each in events}


# ---------------------------------------------------------------------------------------- plans made and read again


def test_a_plan_says_what_it_was_made_for_and_is_explained_from_that_alone(flowgraph: Run, made: Any) -> None:
    plan = made("grpo", "--set", "policy.generate.n=4", "--engine", "train=megatron", "--precision", "fp8")
    assumed = plan["assumed"]
    assert (assumed["flow"], assumed["batch"], assumed["settings"]) == ("grpo", 64, ["policy.generate.n=4"])
    assert assumed["models"] == {"policy": "Qwen/Qwen3-0.6B", "ref": "Qwen/Qwen3-0.6B"}
    assert assumed["engines"] == {"train": "megatron"}, "what was asked for; the roles say what was chosen"
    engines = {each["role"]: each["engine"] for each in plan["placed"]}
    assert engines == {"policy.train": "megatron", "policy.sample": "sglang", "ref.infer": "fsdp"}
    assert (assumed["prompt_tokens"], assumed["response_tokens"]) == ("512", "mean=2k,max=8k")
    assert assumed["precision"] == "fp8"
    told = json.loads(text_of(flowgraph("explain", "plan.json", "policy.sample", "--json")))
    assert told[0]["step_s"] == pytest.approx(plan["step"]["period_s"])


def test_adapters_are_explained_as_they_were_planned(flowgraph: Run, made: Any) -> None:
    plan = made("grpo", model="Qwen/Qwen3-0.6B+lora=8")
    assert plan["assumed"]["models"] == {"policy": "Qwen/Qwen3-0.6B+lora=8", "ref": "Qwen/Qwen3-0.6B"}
    told = json.loads(text_of(flowgraph("explain", "plan.json", "ref.infer", "--json")))
    assert told[0]["step_s"] == pytest.approx(plan["step"]["period_s"])


@pytest.mark.parametrize("engine", ["sample=vllm", "sample=trtllm", "infer=megatron", "train=megatron"])
def test_a_plan_with_any_engine_is_read_back(flowgraph: Run, made: Any, engine: str) -> None:
    pool = made("grpo", "--engine", engine)["pools"][0]["name"]
    assert f"pool  {pool}" in text_of(flowgraph("show", "grpo", "--stage", "placed", "--plan", "plan.json"))
    assert f"{pool} {engine.partition('=')[2]} " in text_of(flowgraph("compare", "plan.json", "plan.json"))


def test_the_users_own_flow_is_planned_and_explained(flowgraph: Run) -> None:
    text_of(flowgraph("cp", "gpg", "my.py"))
    text_of(flowgraph("plan", "my.py", *SMALL, "-o", "plan.json"))
    assert "policy.sample shares a pool with policy.train" in text_of(
        flowgraph("explain", "plan.json", "policy.sample")
    )
    Path("my.py").write_text(Path("my.py").read_text().replace("0.03 * entropy_bonus", "entropy_bonus"))
    assert "edited" not in refused(flowgraph("explain", "plan.json"), 1)


def test_a_flow_that_runs_no_model_has_nothing_to_place(flowgraph: Run) -> None:
    head = "from flowgraph import flow\nfrom nodes import *\n\n\n@flow\n"
    Path("idle.py").write_text(f"{head}def idle(prompts: Prompts, policy: Policy) -> Policy:\n    return policy\n")
    assert refused(flowgraph("plan", "idle.py", *SMALL), 1) == (
        "idle.py:5: @flow idle: runs no model, so there is nothing to place\n  hint: return update(…)\n"
    )


def test_lengths_come_from_a_column_of_a_file(flowgraph: Run) -> None:
    pq.write_table(pa.table({"tokens": [1000, 2000, 3000]}), "runs.parquet")
    said = flowgraph("plan", "gpg", *SMALL, "--response-tokens", "runs.parquet:tokens", "-o", "plan.json")
    assert "these go up to 3,000" in said.err
    assert "policy.sample" in text_of(flowgraph("explain", "plan.json", "policy.sample"))
    Path("runs.parquet").unlink()
    assert "runs.parquet" in refused(flowgraph("explain", "plan.json"), 1)


def test_a_plan_of_lengths_from_a_column_is_read_from_any_folder(
    flowgraph: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"tokens": [1000, 2000, 3000]}), "runs.parquet")
    text_of(flowgraph("plan", "gpg", *SMALL, "--response-tokens", "runs.parquet:tokens", "-o", "plan.json"))
    assumed = json.loads(Path("plan.json").read_text())["assumed"]
    assert assumed["response_tokens"] == f"{tmp_path}/runs.parquet:tokens"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text_of(flowgraph("explain", "../plan.json", "policy.sample"))
    text_of(flowgraph("check", "../plan.json"))


def test_a_file_of_lengths_or_constants_that_is_none_is_named(flowgraph: Run, tmp_path: Path) -> None:
    Path("g.parquet").write_bytes(b"garbage")
    Path("p.toml").write_bytes(bytes(range(128, 256)))
    pq.write_table(pa.table({"tokens": [10**18]}), "long.parquet")
    text = refused(flowgraph("plan", "grpo", *SMALL, "--response-tokens", "g.parquet:x"), 1)
    assert text.startswith(f"{tmp_path}/g.parquet: corrupt, or not Parquet\n")
    text = refused(flowgraph("plan", "grpo", *SMALL, "--response-tokens", "long.parquet:tokens"), 1)
    assert text == ("--response-tokens: column='1,000,000,000,000,000,000': lengths are 1 to 100,000,000 tokens\n")
    assert refused(flowgraph("plan", "grpo", *SMALL, "--profile", "p.toml"), 2) == (
        "--profile p.toml: is not text, so not a profile\n"
    )


def test_more_prompts_than_anyone_draws_are_refused(flowgraph: Run) -> None:
    said = flowgraph("plan", "grpo", *SMALL, "--batch", 10**18)
    assert said.code == 2 and "'--batch'" in said.err


def test_a_ratio_that_holds_nowhere_is_told(flowgraph: Run) -> None:
    said = flowgraph("plan", "gpg", *SMALL, "--ratio", "31:1", "--what-if", "ratio=1:1", "--what-if", "batch=32")
    assert "--ratio 31:1 has no effect: in the best plan, rollout and training share a pool\n" in said.err
    (line,) = (line for line in text_of(said).splitlines() if line.startswith("  ratio=1:1 "))
    assert line.endswith("so no ratio applies: rollout and training share a pool")


def test_what_if_tells_the_pools_where_their_devices_are_others(flowgraph: Run) -> None:
    changes = ("--what-if", "devices=2x8xh200", "--what-if", "devices=1x8xh100", "--what-if", "batch=128")
    text = text_of(flowgraph("plan", "gpg", *SMALL, *changes)).partition("\n\nbatch\n")[0]
    lines = text.splitlines()
    assert re.fullmatch(r"  devices=2x8xh200  [0-9.]+ s +[+-]\d+% +policy\.train.* on \d+", lines[-3])
    assert re.fullmatch(r"  devices=1x8xh100  [0-9.]+ s +\+0% +the same pools", lines[-2])


@pytest.mark.slow(group="commands")
def test_what_is_robust_is_so_by_what_was_asked_for(flowgraph: Run) -> None:
    Path("priced.toml").write_text(PRICED)
    asked = ("plan", "ppo", *PRICES, "--objective")
    costs = re.findall(r"^  \d  ([0-9.]+) a step ", text_of(flowgraph(*asked, "cost", "--robust")), re.MULTILINE)
    plain = re.findall(r"^  \d  ([0-9.]+) a step ", text_of(flowgraph(*asked, "cost")), re.MULTILINE)
    assert float(costs[0]) <= 1.05 * float(plain[0]), "the steadiest of the cheap, not of the fast"
    assert "dearer than the best on average" in text_of(flowgraph(*asked, "cost", "--robust"))
    fewest = json.loads(text_of(flowgraph(*asked, "devices", "--json")))["ranked"][0]["devices"]
    robust = json.loads(text_of(flowgraph(*asked, "devices", "--robust", "--json")))["ranked"][0]["devices"]
    assert robust == fewest
    assert "+-" not in text_of(flowgraph(*asked, "devices", "--robust"))


def test_a_cost_is_not_asked_for_where_one_kind_has_no_price(flowgraph: Run) -> None:
    free = PRICED.replace("price_per_hour = 24.0\n", "").replace("h100", "h20").replace("count = 2", "count = 1")
    Path("priced.toml").write_text(PRICED + free)
    text = refused(flowgraph("plan", "grpo", *PRICES, "--objective", "cost"), 2)
    assert "--objective cost: what h20-sxm-96g cost is not known\n" in text


def test_devices_of_several_kinds_are_told_apart(flowgraph: Run) -> None:
    mixed = ("--cluster", "1x8xh100,1x8xh20", "--model", "Qwen/Qwen3-8B", "--batch", "64", *LENGTHS)
    lines = text_of(flowgraph("plan", "grpo", *mixed)).splitlines()
    ranked = [line for line in lines if re.match(r"  \d  [0-9.]+ s ", line)]
    assert ranked and all(re.search(r" on \d+ h(100|20)-sxm-\d+g", line) for line in ranked)


@pytest.mark.slow(group="commands")
def test_plans_are_told_in_a_hundred_columns(flowgraph: Run) -> None:
    for flow, cluster in (("ppo", "8x8xh100"), ("grpo", "4x8xh100"), ("ppo", "1x8xh100,1x8xh20")):
        large = ("--cluster", cluster, "--model", "Qwen/Qwen3-8B", "--batch", "512", *LENGTHS)
        text = text_of(flowgraph("plan", flow, *large, "-o", "plan.json"))
        long = [line for line in text.splitlines() if len(line) > 100]
        assert not long
        for verb in (("compare", "plan.json", "plan.json"), ("explain", "plan.json"), ("simulate", "plan.json")):
            assert max(map(len, text_of(flowgraph(*verb)).splitlines())) <= 100


def test_what_is_drawn_is_as_wide_as_asked_for(flowgraph: Run, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made()
    monkeypatch.setenv("COLUMNS", "60")
    lane = text_of(flowgraph("simulate", "plan.json")).splitlines()[1]
    assert lane.startswith("all ") and len(lane) == 60
    assert "too many to draw in 60 columns" in text_of(flowgraph("simulate", "plan.json", "--steps", 1000))


def test_models_of_the_hub_whose_sizes_are_known_are_listed_and_near_names_told(flowgraph: Run) -> None:
    said = flowgraph("models")
    assert "Qwen/Qwen3-8B" not in text_of(said)
    assert re.search(
        r"you can plan \d+ more without a download, because their sizes are known: flowgraph models --all\n", said.err
    )
    assert re.search(r"^Qwen/Qwen3-8B +8,190,735,360 ", text_of(flowgraph("models", "--all")), re.MULTILINE)
    assert len(json.loads(text_of(flowgraph("models", "--all", "--json")))) > 100 + len(
        json.loads(text_of(flowgraph("models", "--json")))
    )
    text = refused(flowgraph("plan", "grpo", "--cluster", "1x8xh100", "--model", "Qwen3-9B"), 1)
    assert "`Qwen3-8B`" in text


def test_pins_and_placements_are_kept(flowgraph: Run, made: Any) -> None:
    pools = {each["role"]: each["pool"] for each in made("grpo", "--placement", "split")["placed"]}
    assert pools["policy.train"] == pools["ref.infer"] != pools["policy.sample"]
    pinned = ("--pin", "policy.train=a", "--pin", "ref.infer=b", "--pin", "policy.sample=a")
    pools = {each["role"]: each["pool"] for each in made("grpo", *pinned)["placed"]}
    assert pools == {"policy.train": "a", "policy.sample": "a", "ref.infer": "b"}


def test_pools_have_the_names_that_roles_are_pinned_to_and_the_others_free_ones(flowgraph: Run, made: Any) -> None:
    plan = made("ppo", "--pin", "critic.train=pool0", "--pin", "policy.sample=draws", "--placement", "split:openrlhf")
    pools = {each["role"]: each["pool"] for each in plan["placed"]}
    assert pools == {
        "policy.train": "pool1", "policy.sample": "draws", "critic.train": "pool0", "ref.infer": "pool1",
    }  # fmt: skip
    assert {each["name"] for each in plan["pools"]} == set(pools.values())
    assert {pool for each in plan["step"]["tasks"] for pool in each.get("pools", ())} == {*pools.values(), "host"}
    assert "draws" in text_of(flowgraph("simulate", "plan.json"))
    text_of(flowgraph("check", "plan.json"))


# ---------------------------------------------------------------------------------------- bad questions

USAGE: dict[tuple[str, ...], tuple[int, str]] = {
    ("--cluster", "2x8xh1000"): (1, "2x8xh1000: unknown device `h1000`\n  hint: did you mean `h100`?\n"),
    ("--cluster", "0x8xh100"): (1, "0x8xh100: should have at least one node and one device\n"),
    ("--cluster", "2x0xh100"): (1, "2x0xh100: should have at least one node and one device\n"),
    ("--cluster", "nowhere.toml"): (1, "nowhere.toml: no such file\n"),
    ("--pin", "policy.sampel=a"): (
        2, "--pin policy.sampel=a: no role `policy.sampel`\n  hint: did you mean `policy.sample`?\n",
    ),
    ("--pin", "policy.sample"): (2, "--pin policy.sample: should be ROLE=POOL\n  hint: --pin policy.train=pool0\n"),
    ("--pin", "policy.sample=host"): (
        2, "--pin policy.sample=host: `host` is the place of nodes without a role\n  hint: another name\n",
    ),
    ("--pin", "policy.sample=a", "--pin", "policy.sample=b"): (
        2, "--pin policy.sample=b: is pinned to `a` too\n  hint: leave one of them out\n",
    ),
    ("--engine", "train=fsdp", "--engine", "train=megatron"): (
        2, "--engine train=megatron: the engine of train is already `fsdp`\n",
    ),
    ("--memory", "1GiB"): (
        2,
        ("--memory 1GiB: applies to this machine only, and the devices of 1x8xh100 have memory of their own\n"
        "  hint: set it per device: --cluster 2x8xh100-40GiB\n"),
    ),
    ("--data", "digts"): (1, "unknown data set `digts`\n  hint: did you mean `digits`?\n"),
    ("--what-if", "staleness"): (1, "--what-if: staleness='': has no value: write it as in batch=1024\n"),
    ("--what-if", "devices=4x8xh20000"): (1, "4x8xh20000: unknown device `h20000`\n  hint: did you mean `h200`?\n"),
    ("--what-if", "devices=8xgpu-80GiB"): (
        2,
        (
            "--what-if devices=8xgpu-80GiB: the speed of node-1/0, a gpu of 80.0 GiB, is not known\n"
            "  hint: name devices of a known kind, as 2x8xh100 does, or in a cluster's file their `model`\n"
        ),
    ),
    ("--response-tokens", "0.5"): (1, "--response-tokens: tokens='0.5': lengths are 1 to 100,000,000 tokens\n"),
    ("--ratio", "3"): (2, "--ratio 3: should be two whole numbers from 1\n  hint: --ratio 3:1\n"),
    ("--ratio", "0:1"): (2, "--ratio 0:1: should be two whole numbers from 1\n  hint: --ratio 3:1\n"),
    ("--placement", "colocated", "--pin", "policy.train=a", "--pin", "ref.infer=b"): (
        2,
        (
            "--placement colocated:deepspeed-chat --pin policy.train=a --pin ref.infer=b: policy.train and ref.infer "
            "cannot both share a pool and be separate\n  hint: leave one of them out\n"
        ),
    ),
    ("--placement", "colocate"): (1, "no placement `colocate`\n  hint: did you mean `colocated`?\n"),
    ("--engine", "train=sglang"): (
        2, "--engine train=sglang: no engine `sglang` for train\n  hint: known: fsdp, local, megatron\n",
    ),
    ("--engine", "sample=host"): (
        2, f"--engine sample=host: no engine `host` for sample\n  hint: known: {SAMPLERS}\n",
    ),
    ("--engine", "train=megatorn"): (
        2, "--engine train=megatorn: no engine `megatorn` for train\n  hint: did you mean `megatron`?\n",
    ),
    ("--engine", "trian=fsdp"): (
        2, "--engine trian=fsdp: should be USE=ENGINE\n  hint: uses are train, sample, infer: train=megatron\n",
    ),
    ("--objective", "fast"): (2, "--objective: no `fast`\n  hint: did you mean `step`?\n"),
    ("--search", "graedy"): (2, "--search: no `graedy`\n  hint: did you mean `greedy`?\n"),
    ("--precision", "int4"): (2, "--precision: no precision `int4`\n  hint: known: bfloat16, float32, fp4, fp8\n"),
    ("--response-tokens", "x.parquet"): (
        2, "--response-tokens x.parquet: names no column\n  hint: --response-tokens x.parquet:tokens\n",
    ),
    ("--profile", "nowhere.toml"): (2, "--profile nowhere.toml: cannot be read: No such file or directory\n"),
    ("--set", "policy.generate.m=4"): (
        1, "--set: policy.generate has no setting `m`\n  hint: known: ignore_eos, max_tokens, min_p, n, "  # noqa: ISC004
        "repetition_penalty, stop, temperature, top_k, top_p\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_bad_question_is_answered_with_what_is_wrong(flowgraph: Run, arguments: tuple[str, ...]) -> None:
    code, said = USAGE[arguments]
    text = refused(flowgraph("plan", "grpo", *SMALL, *arguments), code)
    notes = "the flow cuts responses at policy.generate.max_tokens=256; these go up to 8,000\n"
    assert text.removeprefix(notes) == said


def test_more_staleness_than_a_flow_corrects_for_is_refused(flowgraph: Run) -> None:
    said = flowgraph("plan", "decoupled_ppo", *SMALL, "--staleness", "9")
    text = refused(said, 2)
    assert text.endswith(
        "--staleness 9: decoupled_ppo corrects for 4 at most: stale(…, at_most=4)\n  hint: --staleness 4, or auto\n"
    )


def test_what_models_and_devices_do_not_promise_is_noted(flowgraph: Run) -> None:
    """Rows beyond a model's positions, and a precision that a device has no arithmetic for; of `fit` as of `plan`."""
    asked = ("grpo", "--model", "Qwen/Qwen3-0.6B", "--cluster", "1x8xa100", "--batch", "64", "--prompt-tokens", "512")
    long = ("--response-tokens", "65536", "--set", "policy.generate.max_tokens=65536")
    for verb in ("plan", "fit"):
        noted = flowgraph(verb, *asked, *long, "--precision", "fp8").err
        assert "rows have up to 66,048 tokens, and Qwen/Qwen3-0.6B (policy, ref) has 40,960 positions" in noted
        assert "a100-sxm-80g has no fp8 arithmetic" in noted


def test_streaming_within_a_step_is_left_out_where_it_makes_no_step_shorter(flowgraph: Run) -> None:
    said = flowgraph("plan", "grpo", *SMALL, "--streamed")
    assert said.code == 0, said.err
    assert "--streamed has no effect: no chunks make the step shorter" in said.err


def test_what_rows_in_flight_save_is_said(flowgraph: Run) -> None:
    long = ("--response-tokens", "mean=2k,max=16k", "--staleness", "2", "--contract", "in_flight")
    said = flowgraph("plan", "decoupled_ppo", *SMALL[:-2], "--placement", "split", *long)
    assert said.code == 0, said.err
    (line,) = (line for line in said.out.splitlines() if line.startswith("  rows in flight save "))
    assert " a step if syncs wait for responses; caches take " in line


def test_a_staleness_of_a_flow_without_a_bound_is_noted_as_text_and_json(flowgraph: Run) -> None:
    said = flowgraph("plan", "grpo", *SMALL, "--staleness", "2", "--streamed", "--json")
    assert "grpo declares no staleness bound" in said.err
    assert any("grpo declares no staleness bound" in note for note in json.loads(said.out)["notes"])


@pytest.mark.parametrize("text", ["qwen3-0.6", "plicy=Qwen/Qwen3-0.6B", "./nowhere", "tiny:hidden=0"])
def test_a_model_that_is_none_is_named(flowgraph: Run, text: str) -> None:
    said = flowgraph("plan", "grpo", "--cluster", "1x8xh100", "--model", text)
    assert said.code in (1, 2)
    assert "Traceback" not in said.err
    assert text.partition(":")[0] in said.err


@pytest.mark.parametrize(
    ("cluster", "device"),
    [
        ("laptop", "laptop/0, a cpu"),
        ("2xcpu", "laptop/0, a cpu"),
        ("1x8xgpu-80GiB", "node-1/0, a gpu of 80.0 GiB"),
        ("1x8xh100,1x4xgpu-40GiB", "node-2/0, a gpu of 40.0 GiB"),
    ],
)
def test_seconds_of_devices_of_unknown_speed_are_said_to_be_nominal(flowgraph: Run, cluster: str, device: str) -> None:
    nominal = f"the speed of {device}, is not known: seconds are nominal, only to compare plans\n"
    for verb in ("plan", "fit"):
        said = flowgraph(verb, "grpo", "--cluster", cluster)
        assert re.match(r"grpo: [0-9.]+ m?s a step, ", text_of(said)) and nominal in said.err


def test_what_devices_of_no_price_cost_is_not_asked_for(flowgraph: Run) -> None:
    text = refused(flowgraph("plan", "grpo", "--cluster", "laptop", "--objective", "cost"), 2)
    assert text == (
        "--objective cost: what cpus cost is not known\n"
        "  hint: set `price_per_hour` of each machine in the cluster file\n"
    )


@pytest.mark.parametrize(
    ("verb", "part", "why"),
    [
        ("simulate", "step", "has no forecast of seconds; `plan` makes one on devices of a known kind\n"),
        ("explain", "assumed", "does not state its flow, models and data, so it has no forecast\n"),
    ],
)
def test_a_plan_without_seconds_says_how_to_get_one_that_has_them(
    flowgraph: Run, made: Any, verb: str, part: str, why: str
) -> None:
    assert refused(flowgraph(verb, write(made() | {part: None})), 1) == f"edited.json: {why}"


@pytest.mark.parametrize("verb", ["simulate", "explain", "compare"])
def test_a_file_that_is_no_plan_is_named(flowgraph: Run, verb: str) -> None:
    more = ["nowhere.json"] if verb == "compare" else []
    assert refused(flowgraph(verb, "nowhere.json", *more), 1) == (
        "nowhere.json: cannot be read: No such file or directory\n"
    )


def test_one_plan_is_nothing_to_compare(flowgraph: Run, made: Any) -> None:
    made()
    assert refused(flowgraph("compare", "plan.json"), 2) == (
        "compare: compare needs two plans or more\n  hint: compare A.json B.json\n"
    )


def test_a_role_that_is_not_there_is_answered_with_the_nearest(flowgraph: Run, made: Any) -> None:
    made()
    assert refused(flowgraph("explain", "plan.json", "policy.sampel"), 2) == (
        "explain plan.json: no role `policy.sampel`\n  hint: did you mean `policy.sample`?\n"
    )


def test_a_plan_of_another_flow_is_refused(flowgraph: Run, made: Any) -> None:
    plan = made()
    plan["assumed"]["flow"] = "gpg"
    plan["assumed"]["models"] = {"policy": "Qwen/Qwen3-0.6B"}
    text = refused(flowgraph("explain", write(plan)), 1)
    assert text.startswith("edited.json: a plan of grpo, not of gpg\n    plan: grpo ")
    assert refused(flowgraph("plan", "gpg", "--plan", "plan.json"), 1).startswith(
        "plan.json: a plan of grpo, not of gpg\n"
    )


def _no_role(plan: dict[str, Any]) -> None:
    plan["placed"].pop()


def _circle(plan: dict[str, Any]) -> None:
    plan["step"]["waits"].append({"before": "policy.update", "after": "policy.generate"})


def _unknown_seconds(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["parts"]["decode"] = None


def _unknown_task(plan: dict[str, Any]) -> None:
    plan["step"]["waits"].append({"before": "policy.updat", "after": "policy.generate"})


def _task_twice(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"].append(plan["step"]["tasks"][0])


def _less_than_no_time(plan: dict[str, Any]) -> None:
    plan["step"]["tasks"][0]["parts"] = {"decode": -1.0}


EDITS: list[tuple[str, Callable[[dict[str, Any]], None], str]] = [
    ("explain", _no_role, "edited.json: not placed: ref.infer\n  hint: each role of the flow is placed once\n"),
    ("simulate", _unknown_seconds, "edited.json: step: the seconds of wake policy on all/sglang are not known\n"),
    ("simulate", _circle, "edited.json: step: tasks of one step wait for each other: "),
    ("simulate", _unknown_task, "edited.json: step: no task `policy.updat`"),
    ("simulate", _task_twice, "edited.json: step: "),
    ("simulate", _less_than_no_time, "edited.json: step.tasks[0].parts.decode: Input should be greater than or"),
]


@pytest.mark.parametrize(("verb", "edit", "why"), EDITS, ids=[edit.__name__ for _, edit, _ in EDITS])
def test_a_plan_that_was_edited_wrong_says_where(flowgraph: Run, made: Any, verb: str, edit: Any, why: str) -> None:
    plan = made()
    edit(plan)
    assert refused(flowgraph(verb, write(plan)), 1).startswith(why)


# ---------------------------------------------------------------------------------------- what is loaded

LOADED = """
import sys
from flowgraph.cli import main

for arguments in {commands!r}:
    sys.argv = ["flowgraph", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (arguments, stop.code)
    found = sorted(set({heavy!r}) & set(sys.modules))
    assert not found, (arguments, found)
"""


def test_no_verb_of_the_planner_loads_torch_ray_or_transformers(tmp_path: Path) -> None:
    commands = [
        ["plan", "grpo", *SMALL, "-o", "plan.json"],
        ["plan", "ppo", *SMALL, "--json"],
        ["fit", "grpo", *SMALL],
        ["explain", "plan.json", "policy.train"],
        ["compare", "plan.json", "plan.json"],
        ["simulate", "plan.json", "-o", "trace.json"],
    ]
    program = LOADED.format(commands=commands, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
