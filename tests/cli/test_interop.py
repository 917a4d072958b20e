"""`export` and `import` as a user runs them: plans as other systems start them, their scripts as plans, and back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.engines.table import ENGINES
from tests.cli.kept_plans import write_plan
from tests.cli.said import text_of

Run = Callable[..., Any]
LENGTHS = ("--prompt-tokens", "512", "--response-tokens", "mean=1k,max=4k")
CUT = ("--set", "policy.generate.max_tokens=4000")
SMALL = ("--cluster", "1x8xh100", "--model", "Qwen/Qwen3-0.6B", "--batch", "64", *LENGTHS, *CUT)
TARGETS = [("verl", "0.9.1"), ("verl", "0.7.1"), ("openrlhf", "0.11.2"), ("openrlhf", "0.9.10"), ("nemo-rl", "0.7.0")]
VERL = "python3 -m verl.trainer.main_ppo"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray"
KEYS = """\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-0.6B \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8"""


def refused(said: Any, code: int = 1) -> str:
    """Return the error's text; nothing is on stdout, and there is no traceback."""
    assert (said.code, said.out) == (code, ""), said
    assert "Traceback" not in said.err
    text: str = said.err
    return text


def plan_in(path: str) -> Plan:
    """Read a plan's file."""
    return Plan.from_json(Path(path).read_text())


@pytest.fixture
def made(flowgraph: Run) -> Callable[..., Plan]:
    """Return `made(flow, *arguments)`: the plan that is found for a flow, in plan.json."""

    def make(flow: str, *arguments: object) -> Plan:
        return Plan.from_json(write_plan(flowgraph, "plan", flow, *(arguments or SMALL)))

    return make


@pytest.fixture
def read(flowgraph: Run) -> Callable[..., tuple[Plan, str]]:
    """Return `read(script, *options)`: a script's plan, and what is said beside it."""

    def run(script: str, *options: object, name: str = "run.sh") -> tuple[Plan, str]:
        Path(name).write_text(script)
        said = flowgraph("import", name, *options, "-o", "imported.json")
        text_of(said)
        return plan_in("imported.json"), said.err

    return run


def settings(plan: Plan) -> dict[str, str]:
    """Return the settings that a plan was made for."""
    assert plan.assumed is not None
    pairs = (each.partition("=") for each in plan.assumed.settings)
    return {name: value for name, _, value in pairs}


def layouts(plan: Plan) -> dict[str, Layout]:
    """Return how each role is cut."""
    return {each.role: each.layout for each in plan.placed}


def running(plan: Plan) -> dict[str, RoleSettings]:
    """Return how each role runs."""
    return {each.role: each.running for each in plan.placed}


def pools(plan: Plan) -> dict[frozenset[str], int]:
    """Return the devices of each pool by its roles."""
    return {
        frozenset(each.role for each in plan.placed if each.pool == pool.name): len(pool.devices) for pool in plan.pools
    }


def step_s(plan: Plan) -> float:
    """Return the seconds of a step."""
    assert plan.step is not None
    assert plan.step.period_s is not None
    return plan.step.period_s


# ---------------------------------------------------------------------------------------- export


@pytest.mark.parametrize(("system", "version"), TARGETS)
def test_a_found_plan_is_written_as_files_to_stdout_and_as_json(
    flowgraph: Run, made: Any, system: str, version: str
) -> None:
    made("grpo")
    to = ("export", "plan.json", "--to", system, "--version", version)
    said = flowgraph(*to, "-o", "out/deep")
    assert text_of(said) == ""
    written = {path.name: path.read_text() for path in Path("out/deep").iterdir()}
    assert set(written) == ({"nemo_rl.yaml", "run.sh"} if system == "nemo-rl" else {"run.sh"})
    assert all(f"out/deep/{name}\n" in said.err for name in written)
    told = json.loads(text_of(flowgraph(*to, "--json")))
    assert (told["system"], told["version"], told["files"]) == (system, version, written)
    assert all(f"note: {note}\n" in said.err for note in told["notes"])
    printed = text_of(flowgraph(*to))
    assert all(text.rstrip() in printed for text in written.values())
    done = subprocess.run(["bash", "-n", "out/deep/run.sh"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    if system == "nemo-rl":
        assert yaml.safe_load(written["nemo_rl.yaml"])["policy"]["model_name"] == "Qwen/Qwen3-0.6B"


def test_json_and_a_folder_are_both_written(flowgraph: Run, made: Any) -> None:
    made("grpo")
    told = json.loads(text_of(flowgraph("export", "plan.json", "--to", "verl", "--json", "-o", "out")))
    assert told["version"] == "0.9.1"
    assert Path("out/run.sh").read_text() == told["files"]["run.sh"]


def test_each_thing_that_a_system_cannot_do_is_a_note(flowgraph: Run, made: Any) -> None:
    made("grpo")
    said = flowgraph("export", "plan.json", "--to", "openrlhf", "-o", "out")
    assert text_of(said) == ""
    assert "note: policy.sample runs on `sglang`; OpenRLHF samples with vllm\n" in said.err


BAD_EXPORTS: dict[tuple[str, ...], tuple[int, str]] = {
    ("plan.json", "--to", "verll"): (1, "no system `verll`\n  hint: did you mean `verl`?\n"),
    ("plan.json", "--to", "verl", "--version", "0.9"): (
        1, "no version of verl to export to `0.9`\n  hint: did you mean `0.9.1`?\n",
    ),
    ("plan.json", "--to", "openrlhf", "--version", "0.8.11"): (
        1, "no version of openrlhf to export to `0.8.11`\n  hint: did you mean `0.9.10`?\n",
    ),
    ("nowhere.json", "--to", "verl"): (1, "nowhere.json: cannot be read: No such file or directory\n"),
    ("plan.json", "--to", "verl", "-o", "plan.json"): (2, "plan.json: cannot be written: File exists\n"),
    ("plan.json", "--to", "verl", "-o", "plan.json/x"): (2, "plan.json/x: cannot be written: Not a directory\n"),
}  # fmt: skip


@pytest.mark.parametrize("arguments", BAD_EXPORTS, ids=" ".join)
def test_an_export_that_cannot_be_says_why(flowgraph: Run, made: Any, arguments: tuple[str, ...]) -> None:
    made("grpo")
    before = Path("plan.json").read_text()
    code, text = BAD_EXPORTS[arguments]
    assert refused(flowgraph("export", *arguments), code) == text
    assert Path("plan.json").read_text() == before


def test_a_plan_that_does_not_say_what_it_was_made_for_is_not_exported(flowgraph: Run, made: Any) -> None:
    made("grpo")
    plan = json.loads(Path("plan.json").read_text())
    del plan["assumed"]
    Path("bare.json").write_text(json.dumps(plan))
    assert refused(flowgraph("export", "bare.json", "--to", "verl")) == (
        "bare.json: does not state its flow, models and data, so no command can be written\n"
    )


def test_a_plan_for_cpus_is_exported_and_what_another_system_lacks_is_a_note(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "grpo", "--cluster", "1xcpu", "--memory", "4GiB", "-o", "laptop.json"))
    said = flowgraph("export", "laptop.json", "--to", "verl")
    assert "actor_rollout_ref.rollout.name=vllm" in text_of(said)
    assert "note: policy.sample runs on `local`; verl samples with vllm\n" in said.err


def test_a_plan_that_is_not_of_its_flow_is_not_exported(flowgraph: Run, made: Any) -> None:
    made("grpo")
    text = Path("plan.json").read_text()
    Path("other.json").write_text(text.replace('"flow": "grpo"', '"flow": "gpg"'))
    assert refused(flowgraph("export", "other.json", "--to", "verl")).startswith(
        "other.json: this plan is for another structure\n"
    )
    plan = json.loads(text)
    plan["placed"].pop()
    Path("short.json").write_text(json.dumps(plan))
    assert refused(flowgraph("export", "short.json", "--to", "verl")).startswith("short.json: not placed: ref.infer\n")


def test_a_plan_whose_layouts_do_not_fill_its_pools_is_not_exported(flowgraph: Run, made: Any) -> None:
    made("gpg")
    text = Path("plan.json").read_text()
    plan = json.loads(text)
    for each in plan["placed"]:
        each["layout"] |= {"data": 2, "tensor": 3}
    Path("three.json").write_text(json.dumps(plan))
    said = refused(flowgraph("export", "three.json", "--to", "verl"))
    assert said.startswith("three.json: policy.train: data=2 tensor=3 sharding=full takes 6 devices, its pool has 8\n")


def test_whether_a_model_of_unknown_sizes_fits_is_not_known_and_said(flowgraph: Run, made: Any) -> None:
    made("gpg")
    Path("plan.json").write_text(Path("plan.json").read_text().replace("Qwen/Qwen3-0.6B", "/nowhere/mine"))
    said = flowgraph("export", "plan.json", "--to", "verl")
    assert "actor_rollout_ref.model.path=/nowhere/mine" in text_of(said)
    assert "note: it is not known whether the exported file fits: /nowhere/mine: no such folder\n" in said.err


LARGE = ("--cluster", "16x8xh100", "--model", "Qwen3-235B-A22B", "--batch", "512")
LONG = ("--prompt-tokens", "1k", "--response-tokens", "mean=4k,max=16k")


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("system", ["verl", "openrlhf", "nemo-rl"])
def test_a_plan_that_does_not_fit_as_a_system_runs_it_is_written_in_layouts_that_do(
    flowgraph: Run, made: Any, read: Any, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Megatron offloads weights that it computes with, a plan shards them, which no system here does so."""
    known = ENGINES["megatron"]
    other = replace(known, cpu_optimizer=False, modelled=replace(known.modelled, settings=None))
    monkeypatch.setitem(cast("dict[str, Any]", ENGINES), "megatron", other)
    monkeypatch.setattr("placements.search.role_options.MAX_UNEVEN", 0.0)
    by_megatron = ("--engine", "train=megatron", "--engine", "infer=megatron")
    plan = made("grpo", *LARGE, *LONG, *by_megatron)
    told = json.loads(text_of(flowgraph("export", "plan.json", "--to", system, "--json", "-o", "out")))
    name = f"{system} {told['version']}"
    assert told["notes"][0].startswith(f"as {name} runs the plan, ")
    assert " more than the 71.6 GiB that a plan may use of each of its devices" in told["notes"][0]
    (instead,) = [note for note in told["notes"] if note.startswith("the exported file was changed so that it fits: ")]
    assert layouts(plan)["policy.train"].sharding == "full"
    assert str(layouts(plan)["policy.train"]) not in instead
    assert (told["faults"], told["step_s"] > step_s(plan)) == ([], True)
    assert all(f"# - {note}\n" in next(iter(told["files"].values())) for note in told["notes"])
    if system != "nemo-rl":
        back, _ = read(Path("out/run.sh").read_text(), *LONG)
        assert text_of(flowgraph("check", "imported.json")) == ""
        assert step_s(back) == pytest.approx(told["step_s"], rel=1e-3)


def test_a_plan_of_which_nothing_fits_says_so_and_by_how_much(flowgraph: Run, made: Any) -> None:
    made("gpg")
    plan = json.loads(Path("plan.json").read_text())
    for each in plan["placed"]:
        each["running"]["cache_share"] = 0.98 if each["role"] == "policy.sample" else None
    Path("plan.json").write_text(json.dumps(plan))
    said = flowgraph("export", "plan.json", "--to", "verl")
    assert "# - the exported file DOES NOT FIT, and no layout that fits is known\n" in text_of(said)
    assert "note: as verl 0.9.1 runs the plan, policy.sample needs " in said.err


def test_an_export_that_takes_more_devices_than_there_are_says_how_many(flowgraph: Run, made: Any) -> None:
    apart = ("--pin", "policy.train=a", "--pin", "ref.infer=a", "--pin", "policy.sample=b", "--pin", "critic.train=b")
    made("ppo", *SMALL, *apart)
    said = flowgraph("export", "plan.json", "--to", "openrlhf")
    text_of(said)
    assert "note: as openrlhf 0.11.2 runs the plan, it takes 12 devices, there are 8\n" in said.err
    assert (
        "the critic and vLLM share a pool, which OpenRLHF has no flag for without the policy: the critic takes 4"
        in (said.err)
    )


def test_a_response_is_written_as_long_as_it_was_forecast(flowgraph: Run, made: Any) -> None:
    made("gpg", *(each for each in SMALL if each not in CUT))
    said = flowgraph("export", "plan.json", "--to", "verl")
    assert "data.max_response_length=4000 " in text_of(said)
    cut = "the flow cuts responses at 256 tokens; the forecast, and so this file, at 4000"
    assert f"note: {cut}\n" in said.err


# ---------------------------------------------------------------------------------------- there and back

VLLM = ("--engine", "sample=vllm")
ON_FOUR = ("--cluster", "1x4xh100", "--model", "Qwen/Qwen2.5-7B", "--batch", "128", *LENGTHS, *CUT, *VLLM)
EXPERTS = ("--cluster", "2x8xh100", "--model", "Qwen/Qwen3-30B-A3B", "--batch", "64", *LENGTHS, *CUT, *VLLM)
BY_MEGATRON = ("--engine", "train=megatron", "--engine", "infer=megatron")
ADAPTERS = ("--cluster", "1x8xh100", "--model", "Qwen/Qwen3-8B+lora=16", "--batch", "64", *LENGTHS, *CUT, *VLLM)


def as_cut(plan: Plan) -> dict[str, Layout]:
    """Return the layouts by role; how one rank shares what it holds is the same by each name."""
    return {
        role: each.model_copy(update={"sharding": "none"}) if each.data * each.sequence == 1 else each
        for role, each in layouts(plan).items()
    }


BOTH_VERLS, BOTH_OPENRLHFS = TARGETS[:2], TARGETS[2:4]
EXACT: list[tuple[str, tuple[str, ...], list[tuple[str, str]]]] = [
    ("grpo", (*SMALL, *VLLM), [*BOTH_VERLS, *BOTH_OPENRLHFS]),
    ("grpo", (*SMALL, *VLLM, "--placement", "split"), [*BOTH_VERLS, *BOTH_OPENRLHFS]),
    ("grpo", SMALL, BOTH_VERLS),  # sampling with SGLang
    ("gpg", (*SMALL, *VLLM), [*BOTH_VERLS, *BOTH_OPENRLHFS]),
    ("ppo", (*SMALL, *VLLM, "--placement", "colocated"), [*BOTH_VERLS, *BOTH_OPENRLHFS]),
    ("decoupled_ppo", (*SMALL, *VLLM), [*BOTH_VERLS, *BOTH_OPENRLHFS]),
    ("grpo", (*SMALL, *VLLM, "--placement", "split", "--staleness", "2"), BOTH_VERLS[:1]),
    ("gpg", (*ON_FOUR, "--cluster", "1x8xh100"), BOTH_OPENRLHFS),  # OpenRLHF makes all logits at once: they fit on 8
    ("gpg", (*EXPERTS, "--engine", "train=megatron"), BOTH_VERLS),
    ("gpg", ADAPTERS, BOTH_OPENRLHFS),
]


# The first plan goes to each version of each system and back; the others to one version of each, in turn.
BACK = [
    pytest.param(
        *(flow, arguments, target),
        marks=() if place == 0 or len(targets) == 1 or version % 2 == place % 2 else pytest.mark.slow,
    )
    for place, (flow, arguments, targets) in enumerate(EXACT)
    for version, target in enumerate(targets)
]


@pytest.mark.parametrize(
    ("flow", "arguments", "target"),
    BACK,
    ids=lambda each: each[0] if isinstance(each, tuple) and each[0][:2] != "--" else str(each)[:60],
)
def test_a_plan_comes_back_with_its_pools_layouts_and_seconds(
    flowgraph: Run, made: Any, read: Any, flow: str, arguments: tuple[str, ...], target: tuple[str, str]
) -> None:
    plan = made(flow, *arguments)
    text_of(flowgraph("export", "plan.json", "--to", target[0], "--version", target[1], "-o", "out"))
    back, _ = read(Path("out/run.sh").read_text(), *LENGTHS)
    assert pools(back) == pools(plan)
    assert as_cut(back) == as_cut(plan)
    assert {each.role: each.lag for each in back.placed} == {each.role: each.lag for each in plan.placed}
    trained = {role: each for role, each in running(plan).items() if not role.endswith(".sample")}
    assert {role: running(back)[role] for role in trained} == trained
    assert back.assumed is not None
    assert plan.assumed is not None
    assert (back.assumed.models, back.assumed.batch) == (plan.assumed.models, plan.assumed.batch)
    host = 1e-3 if back.flow == plan.flow else 2e-3  # verl's importance weights are not in the flow that is read back
    assert step_s(back) == pytest.approx(step_s(plan), rel=host)
    assert text_of(flowgraph("check", "imported.json")) == ""


NEAR: list[tuple[str, tuple[str, ...], tuple[str, str], str, float]] = [
    ("gpg", ON_FOUR, TARGETS[0], "", 0.08),
    ("gpg", ADAPTERS, TARGETS[1], "", 0.08),
    (
        "grpo",
        (*EXPERTS, *BY_MEGATRON),
        TARGETS[0],
        "",
        0.05,
    ),
    (
        "grpo",
        (*EXPERTS, *BY_MEGATRON),
        TARGETS[1],
        "",
        0.05,
    ),
    ("grpo", (*EXPERTS, *BY_MEGATRON), TARGETS[2], "OpenRLHF trains with DeepSpeed", 0.10),
]


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize(("flow", "arguments", "target", "note", "share"), NEAR)
def test_a_plan_that_a_system_cannot_run_as_it_is_comes_back_near(
    flowgraph: Run,
    made: Any,
    read: Any,
    flow: str,
    arguments: tuple[str, ...],
    target: tuple[str, str],
    note: str,
    share: float,
) -> None:
    plan = made(flow, *arguments)
    said = flowgraph("export", "plan.json", "--to", target[0], "--version", target[1], "-o", "out")
    assert text_of(said) == ""
    assert note in said.err
    back, _ = read(Path("out/run.sh").read_text(), *LENGTHS)
    assert pools(back) == pools(plan)
    assert step_s(back) == pytest.approx(step_s(plan), rel=share)
    assert text_of(flowgraph("check", "imported.json")) == ""


# ---------------------------------------------------------------------------------------- import: what is read


ACTOR = "actor_rollout_ref.actor"
ADAM = f"+{ACTOR}.optim.override_optimizer_config"
RECIPES: dict[str, tuple[str, str, str, str]] = {
    # What verl publishes as the fewest devices of each model, by its own scripts; none says how long its rows are.
    "14B on 4 H800": ("Qwen/Qwen2.5-14B", "h800", "1 4", f"""
        data.train_batch_size=1024 data.max_prompt_length=1024 data.max_response_length=1024
        actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True
        {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size_per_gpu=16
        {ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True
        actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.5
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.ref.fsdp_config.param_offload=True
    """),
    "72B on 32 H800": ("Qwen/Qwen2.5-72B", "h800", "4 8", f"""
        data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=512
        actor_rollout_ref.model.use_remove_padding=True actor_rollout_ref.model.enable_gradient_checkpointing=True
        {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=24000
        {ACTOR}.fsdp_config.param_offload=True {ACTOR}.fsdp_config.optimizer_offload=True
        actor_rollout_ref.rollout.tensor_model_parallel_size=16 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
        actor_rollout_ref.ref.fsdp_config.param_offload=True
    """),
    "32B on 8 H20": ("Qwen/Qwen2.5-32B", "h20", "1 8", f"""
        data.train_batch_size=512 data.max_prompt_length=2048 data.max_response_length=6144 model_engine=megatron
        {ACTOR}.ppo_mini_batch_size=256 {ACTOR}.ppo_micro_batch_size_per_gpu=1
        {ACTOR}.megatron.tensor_model_parallel_size=8 {ACTOR}.megatron.param_offload=True
        {ACTOR}.megatron.grad_offload=True {ACTOR}.megatron.optimizer_offload=True
        actor_rollout_ref.rollout.tensor_model_parallel_size=8 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.ref.megatron.param_offload=True
    """),
    "671B on 96 H20": ("deepseek-ai/DeepSeek-V3", "h20", "12 8", f"""
        data.train_batch_size=96 data.max_prompt_length=2048 data.max_response_length=9632 model_engine=megatron
        {ACTOR}.ppo_mini_batch_size=32 {ACTOR}.use_dynamic_bsz=True {ACTOR}.ppo_max_token_len_per_gpu=11680
        {ADAM}.optimizer_cpu_offload=True {ADAM}.optimizer_offload_fraction=1.
        {ACTOR}.megatron.param_offload=True {ACTOR}.megatron.grad_offload=True
        {ACTOR}.megatron.tensor_model_parallel_size=8 {ACTOR}.megatron.pipeline_model_parallel_size=12
        {ACTOR}.megatron.override_transformer_config.recompute_granularity=full
        actor_rollout_ref.ref.megatron.tensor_model_parallel_size=8
        actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=12 actor_rollout_ref.ref.megatron.param_offload=True
        actor_rollout_ref.rollout.tensor_model_parallel_size=32 actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    """),
}  # fmt: skip


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("name", RECIPES)
def test_a_published_recipe_is_not_refused(flowgraph: Run, name: str) -> None:
    """It fits as it is, or with rows shorter than the longest that it allows, and then says how long."""
    model, device, machines, keys = RECIPES[name]
    nodes, each = machines.split()
    both = f"algorithm.adv_estimator=grpo {ACTOR}.use_kl_loss=True actor_rollout_ref.model.path={model}"
    where = f"actor_rollout_ref.rollout.n=5 trainer.nnodes={nodes} trainer.n_gpus_per_node={each}"
    Path("run.sh").write_text(" ".join(f"{VERL} {both} {where} {keys}".split()) + "\n")
    read = json.loads(text_of(flowgraph("import", "run.sh", "--device", device, "--json")))
    assert (not read["faults"]) != (read["fits_with"] is not None)
    assert any(note.startswith("every row is assumed to be as long as the run allows") for note in read["notes"])
    if name == "671B on 96 H20":  # 66 GB were published
        peaks = [peak["memory_bytes"] for pool in read["plan"]["forecast"] for peak in pool["peaks"]]
        assert not read["faults"]
        assert 0.9 < max(peaks) / 66e9 < 1.15


def test_a_script_is_printed_as_a_flow_a_plan_and_what_a_search_finds(flowgraph: Run) -> None:
    Path("run.sh").write_text(f"{VERL} \\\n{KEYS} $@\n")
    said = flowgraph("import", "run.sh")
    lines = text_of(said).splitlines()
    assert lines[0] == "verl 0.9.1: grpo, policy Qwen/Qwen3-0.6B, ref Qwen/Qwen3-0.6B; hybrid:verl"
    assert any(line.startswith("  policy.sample  vllm") for line in lines)
    at = next(place for place, line in enumerate(lines) if line.startswith("a step takes "))
    assert lines[at + 1].startswith("searched on the same devices: ")
    assert lines[at + 1].endswith(" s a step, -19%, as verl 0.9.1 runs it")
    assert lines[at + 2] == "pool0: 8 devices"
    roles = [line.split()[:3] for line in lines[at + 3 : -3] if not line.startswith("   ")]
    assert roles == [
        ["policy.train", "fsdp", "data=8"],
        ["policy.sample", "vllm", "data=8"],
        ["ref.infer", "fsdp", "data=8"],
    ]
    assert lines[-3:] == [
        "changes to run.sh, in the terms of verl 0.9.1",
        "  actor_rollout_ref.rollout.tensor_model_parallel_size=1  (was 2)",
        "  actor_rollout_ref.rollout.gpu_memory_utilization=0.3  (was 0.5)",
    ]
    assert "trainer." not in said.err


def test_with_those_changes_a_run_is_as_good_as_what_a_search_finds(flowgraph: Run) -> None:
    rollout = "actor_rollout_ref.rollout"
    Path("run.sh").write_text(
        f"{VERL} {KEYS} {rollout}.tensor_model_parallel_size=1 {rollout}.gpu_memory_utilization=0.3"
    )
    last = text_of(flowgraph("import", "run.sh")).splitlines()[-1]
    assert last.startswith("searched on the same devices: this run is as fast as the best plan found, ")


def test_where_a_search_finds_nothing_faster_that_is_said(flowgraph: Run) -> None:
    sizes = "data.max_prompt_length=4096 data.max_response_length=64 data.train_batch_size=256"
    whole = " ".join(f"actor_rollout_ref.{own}.fsdp_config.fsdp_size=1" for own in ("actor", "ref"))
    more = "actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768"
    tensor = "actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.nnodes=8"
    keys = KEYS.replace("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B")  # whose weights cost more to gather than they save
    Path("run.sh").write_text(f"{VERL} {keys} {sizes} {whole} {more} {tensor}")
    lines = text_of(flowgraph("import", "run.sh")).splitlines()
    assert lines[-1] == "searched on the same devices: no faster plan was found"


def test_what_a_search_finds_is_written_and_is_what_its_changes_come_to(flowgraph: Run, read: Any) -> None:
    script = f"{VERL} {KEYS}"
    Path("run.sh").write_text(script)
    told = json.loads(text_of(flowgraph("import", "run.sh", "--json", "--found", "found.json")))["found"]
    found = plan_in("found.json")
    assert step_s(found) == told["step_s"]
    assert {each["role"]: Layout(**each["layout"]) for each in told["roles"]} == layouts(found)
    assert {each["role"]: each["devices"] for each in told["roles"]} == dict.fromkeys(layouts(found), 8)
    assert text_of(flowgraph("check", "found.json")) == ""
    changed = " ".join(f"{each['key']}={each['value']}" for each in told["changes"])
    again, _ = read(f"{script} {changed}")
    assert step_s(again) == pytest.approx(told["step_s"], rel=1e-3)
    assert layouts(again) == layouts(found)


def test_of_a_run_of_openrlhf_what_changes_are_its_flags(flowgraph: Run) -> None:
    Path("run.sh").write_text(AGENTS)
    said = flowgraph("import", "run.sh")
    lines = text_of(said).splitlines()
    changes = lines[lines.index("changes to run.sh, in the terms of openrlhf 0.9.10") + 1 :]
    assert "  --colocate_all_models  (was False)" in changes
    assert "  without colocate_actor_ref  (was True)" in changes
    assert "{token}" not in said.out + said.err


def test_where_no_plan_fits_nothing_is_written(flowgraph: Run) -> None:
    keys = KEYS.replace("Qwen/Qwen3-0.6B", "Qwen3-235B-A22B")
    Path("run.sh").write_text(f"{VERL} {keys}")
    said = flowgraph("import", "run.sh", "--found", "found.json")
    assert text_of(said).splitlines()[-1] == "searched on the same devices: no plan fits"
    assert "found.json is not written: the search found no plan that the system can run\n" in said.err
    assert not Path("found.json").exists()


def test_what_no_plan_keeps_is_said_so_that_it_can_be_told_again(flowgraph: Run) -> None:
    more = "trainer.save_freq=20 reward_model.reward_manager=prime custom_reward_function.path=rule.py"
    Path("run.sh").write_text(f"{VERL} {KEYS} {more} trainer.logger=[console]")
    said = flowgraph("import", "run.sh")
    text_of(said)
    again = f"a plan does not store these; add them to the exported command: {more} 'trainer.logger=[console]'"
    assert f"{again}\n" in said.err


def test_as_json_it_has_the_plan_what_was_said_and_what_a_search_finds(flowgraph: Run) -> None:
    Path("run.sh").write_text(f"{VERL} {KEYS} +trainer.own=1 data.shufle=False")
    said = flowgraph("import", "run.sh", "--json", "-o", "imported.json")
    told = json.loads(text_of(said))
    assert Plan.from_json(json.dumps(told["plan"])) == plan_in("imported.json")
    assert (told["system"], told["version"], told["placement"], told["faults"]) == ("verl", "0.9.1", "hybrid:verl", [])
    assert 0 < told["searched_s"] <= told["plan"]["step"]["period_s"] * 1.1
    assert any(note.startswith("trainer.own was not read: verl 0.9.1 has no such key") for note in told["notes"])
    assert "data.shufle was not read: verl 0.9.1 has no such key; did you mean `data.shuffle`?" in told["notes"]


SHELL = """#!/usr/bin/env bash
set -xeuo pipefail
# python3 -m verl.trainer.main_ppo trainer.nnodes=9  (it's the old one)
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL=${MODEL:-"Qwen/Qwen3-0.6B"}   # a name
NGPUS=${NGPUS:-8}; BATCH=$((16 * 4))
LIST="['$HOME/a b.parquet', '$HOME/c.parquet']"
EXTRA="actor_rollout_ref.rollout.n=4"
EXTRA+=" trainer.nnodes=2"
ACTOR=(
    actor_rollout_ref.model.path="$MODEL"  # quoted
    'actor_rollout_ref.actor.optim.lr=2e-6'
    ++actor_rollout_ref.actor.use_kl_loss=True
)
cat > note.txt <<'EOF'
it's python3 -m nothing "open
EOF
case "${DEVICE:-gpu}" in
  npu) NGPUS=16 ;;
esac
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_files="$LIST" \\
    data.train_batch_size=$BATCH data.max_prompt_length=512 \\
    data.max_response_length=1024 `# a comment of some` \\
    "${ACTOR[@]}" +trainer.mine='{a: 1}' ~trainer.logger \\
    trainer.n_gpus_per_node="${NGPUS}" trainer.experiment_name="x_$(date +%Y)" \\
    $EXTRA "$@" 2>&1 | tee "log_${BATCH}.txt"
"""


def test_quotes_comments_variables_arrays_and_continued_lines_are_read_as_a_shell_reads_them(read: Any) -> None:
    plan, said = read(SHELL)
    assert plan.assumed is not None
    assert (plan.assumed.flow, plan.assumed.batch) == ("grpo", 64)
    assert plan.assumed.models == {"policy": "Qwen/Qwen3-0.6B", "ref": "Qwen/Qwen3-0.6B"}
    assert len(plan.pools[0].devices) == 16
    assert (settings(plan)["policy.update.lr"], settings(plan)["policy.generate.n"]) == ("2e-06", "4")
    (needless,) = [line for line in said.splitlines() if line.startswith("not read, because no plan depends on them: ")]
    assert {"data.train_files", "trainer.logger", "trainer.experiment_name"} <= set(needless[43:].split(", "))
    assert "trainer.mine was not read: verl 0.9.1 has no such key" in said
    assert "`a command's output` may hold further keys; only a running shell knows them\n" in said


def test_a_script_with_ends_of_lines_and_a_mark_of_another_system_is_read(flowgraph: Run) -> None:
    Path("run.sh").write_bytes(b"\xef\xbb\xbf" + f"{VERL} \\\n{KEYS}\n".replace("\n", "\r\n").encode())
    assert text_of(flowgraph("import", "run.sh")).startswith("verl 0.9.1: grpo")


YAML = """
defaults: [ppo_trainer, _self_]
algorithm: {adv_estimator: gae, use_kl_in_reward: true}
data: {train_batch_size: 64, max_prompt_length: 512, max_response_length: 1024}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-0.6B}
  actor: {ppo_mini_batch_size: '${data.train_batch_size}', fsdp_config: {param_offload: true, optimizer_offload: true}}
critic: {model: {path: Qwen/Qwen3-0.6B}}
trainer: {n_gpus_per_node: 4}
"""


@pytest.mark.parametrize("name", ["config.yaml", "config.YML"])
def test_a_configuration_is_read_as_its_command(read: Any, name: str) -> None:
    plan, _ = read(YAML, name=name)
    assert plan.assumed is not None
    assert (plan.assumed.flow, plan.assumed.batch) == ("ppo", 64)
    assert set(layouts(plan)) == {"policy.train", "policy.sample", "critic.train", "ref.infer"}
    assert running(plan)["policy.train"].sleeps
    assert not running(plan)["critic.train"].sleeps


AGENTS = """ARGS=(
   --pretrain Qwen/Qwen3-0.6B
   # --reward_pretrain x
   --prompt_max_len 512 --generate_max_len 1024
   --rollout_batch_size 64 --n_samples_per_prompt=8 --train_batch_size 512
   --advantage_estimator group_norm --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3
   --actor_num_gpus_per_node 4 --ref_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2
   --colocate_actor_ref --zero_stage 3 --save_steps -1 --eps_clip_low_high 0.2 0.28
   --new_flag 3 --rollout_batch_sise 7 --use_wandb {token}
)
ray job submit --runtime-env-json='{"working_dir": "/x"}' -- python3 -u -m openrlhf.cli.train_ppo_ray ${ARGS[@]}
"""


def test_a_command_of_openrlhf_is_read_and_a_flag_that_it_has_not_is_named(read: Any) -> None:
    plan, said = read(AGENTS)
    assert pools(plan) == {frozenset({"policy.train", "ref.infer"}): 4, frozenset({"policy.sample"}): 4}
    assert layouts(plan)["policy.sample"] == Layout(data=2, tensor=2)
    assert settings(plan)["policy.update.clipped.eps_high"] == "0.28"
    assert len(plan.cluster.nodes) == 1  # eight devices are those of one machine
    assert (
        "rollout_batch_sise was not read: openrlhf 0.8.11 has no such key; did you mean `rollout_batch_size`?" in said
    )
    assert "new_flag was not read: openrlhf 0.8.11 has no such key" in said


def test_a_model_that_lies_in_a_folder_elsewhere_has_the_sizes_of_its_name(flowgraph: Run, read: Any) -> None:
    keys = KEYS.replace("Qwen/Qwen3-0.6B", "$HOME/models/Qwen3-0.6B")
    plan, said = read(f"{VERL} {keys} actor_rollout_ref.model.lora_rank=8")
    assert plan.assumed is not None
    assert plan.assumed.models == {"policy": "Qwen/Qwen3-0.6B+lora=8", "ref": "Qwen/Qwen3-0.6B"}
    assert "`~/models/Qwen3-0.6B` is not on this machine: the sizes of Qwen/Qwen3-0.6B are used, by its name\n" in said
    Path("run.sh").write_text(f"{VERL} {KEYS.replace('Qwen/Qwen3-0.6B', '/data/models/mine')}")
    assert refused(flowgraph("import", "run.sh")) == (
        "/data/models/mine: no such folder\n"
        "  hint: --model policy=NAME plans with the sizes of another model, such as its base model\n"
    )


def test_a_model_of_unknown_sizes_is_planned_with_those_of_another(flowgraph: Run, read: Any) -> None:
    keys = KEYS.replace("Qwen/Qwen3-0.6B", "/data/models/mine").replace("=grpo", "=gae")
    script = f"{VERL} {keys} actor_rollout_ref.model.lora_rank=8 critic.model.path=/data/models/judge"
    Path("run.sh").write_text(script)
    plan, said = read(script, "--model", "policy=Qwen3-0.6B", "--model", "critic=Qwen/Qwen3-1.7B")
    assert plan.assumed is not None
    assert plan.assumed.models == {
        "policy": "Qwen/Qwen3-0.6B+lora=8", "critic": "Qwen/Qwen3-1.7B", "ref": "Qwen/Qwen3-0.6B",
    }  # fmt: skip
    assert "`/data/models/mine` is planned with the sizes of Qwen3-0.6B\n" in said
    Path("run.sh").write_text(script)
    assert refused(flowgraph("import", "run.sh", "--model", "plicy=Qwen3-0.6B"), 2) == (
        "--model plicy=Qwen3-0.6B: flow ppo has no model `plicy`\n  hint: did you mean `policy`?\n"
    )


def test_a_run_without_a_reference_is_a_plan_without_one(flowgraph: Run, read: Any) -> None:
    keys = KEYS.replace("=grpo", "=gae").replace("use_kl_loss=True", "use_kl_loss=False")
    plan, said = read(f"{VERL} {keys}")
    assert set(layouts(plan)) == {"policy.train", "policy.sample", "critic.train"}
    assert "verl runs no reference here; the plan leaves out that of the flow `ppo`\n" in said
    assert text_of(flowgraph("check", "imported.json")) == ""
    assert "policy.train" in text_of(flowgraph("explain", "imported.json", "policy.train"))
    assert "use_kl_in_reward=False" in text_of(flowgraph("export", "imported.json", "--to", "verl"))


def test_a_run_ahead_on_pools_of_few_devices_is_forecast_as_one(flowgraph: Run, read: Any) -> None:
    module = "verl.experimental.one_step_off_policy.main_ppo"
    more = "trainer.n_gpus_per_node=6 actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=2"
    plan, _ = read(f"python3 -m {module} {KEYS} {more}")
    assert pools(plan) == {frozenset({"policy.train", "ref.infer"}): 6, frozenset({"policy.sample"}): 2}
    assert [len(node.devices) for node in plan.cluster.nodes] == [8]
    assert {each.lag for each in plan.placed if each.role == "policy.sample"} == {1}
    assert plan.step is not None
    seconds = [task.seconds or 0.0 for task in plan.step.tasks]
    assert step_s(plan) < sum(seconds)  # drawing and training overlap
    assert text_of(flowgraph("check", "imported.json")) == ""


def test_machines_of_more_devices_than_a_run_takes_are_said(flowgraph: Run) -> None:
    more = "trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1"
    keys = f"{KEYS} {more} actor_rollout_ref.rollout.n_gpus_per_node=4"
    Path("run.sh").write_text(f"{VERL} {keys}")
    assert "searched on all 16 devices of its machines: " in text_of(flowgraph("import", "run.sh"))


def test_weights_that_draw_in_eight_bits_are_searched_for_in_eight_bits(read: Any) -> None:
    plan, _ = read(f"{VERL} {KEYS} actor_rollout_ref.rollout.quantization=fp8")
    assert plan.assumed is not None
    assert (plan.assumed.precision, running(plan)["policy.sample"].precision) == ("fp8", "fp8")


def test_a_run_that_does_not_fit_says_what_is_short(flowgraph: Run) -> None:
    keys = KEYS.replace("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-32B-Instruct")
    Path("run.sh").write_text(f"{VERL} {keys}")
    told = json.loads(text_of(flowgraph("import", "run.sh", "--json", "-o", "imported.json")))
    assert told["faults"]
    assert all(fault.startswith("no placement for grpo on run.sh: ") for fault in told["faults"])
    said = flowgraph("check", "imported.json")
    assert (said.code, said.out.count("no placement for grpo on imported.json")) == (1, len(told["faults"]))


@pytest.mark.parametrize("device", ["a100", "H200", "h100-64GiB"])
def test_a_run_is_forecast_on_other_devices(read: Any, device: str) -> None:
    plan, _ = read(f"{VERL} {KEYS}", "--device", device)
    assert plan.cluster.nodes[0].devices[0].model.startswith(device.partition("-")[0].lower())


# ---------------------------------------------------------------------------------------- a plan on another cluster


def test_an_imported_plan_is_checked_on_other_clusters(flowgraph: Run, read: Any) -> None:
    read(f"{VERL} {KEYS}")
    check = ("check", "imported.json", "--cluster")
    assert text_of(flowgraph(*check, "1x8xh200")) == ""
    told = json.loads(text_of(flowgraph(*check, "2x8xa100", "--json")))
    assert told["faults"] == []
    few = flowgraph(*check, "1x4xh100")
    assert few.code == 1
    assert "8 devices of one known kind" in few.out + few.err
    assert refused(flowgraph(*check, "1x8xh1000")) == (
        "1x8xh1000: unknown device `h1000`\n  hint: did you mean `h100`?\n"
    )
    assert "nowhere.toml" in refused(flowgraph(*check, "nowhere.toml"))


# ---------------------------------------------------------------------------------------- import: what is refused

BAD: dict[str, tuple[str, str]] = {
    "empty": ("", "run.sh: this text has no command of verl or OpenRLHF\n"),
    "no command": ("echo hello\n", "run.sh: this text has no command of verl or OpenRLHF\n"),
    "only a comment": (f"# {VERL} {KEYS}".replace("\\\n", ""), "run.sh: this text has no command of verl or OpenRLHF"),
    "open quote": (f"set -x\n{VERL} 'data.x=1\n", "run.sh:2: `'data.x=1`: this quote is never closed\n"),
    "open array": ("A=(\n1\n", "run.sh:1: `(`: this array is never closed\n"),
    "blank after a backslash": (f"{VERL} \\ \n  a=1\n", "run.sh:1: `\\`: spaces follow it, so it does not continue"),
    "no value": (f"{VERL} data.train_batch_size", "run.sh:1: `data.train_batch_size`: is not an override, which is"),
    "empty value": (f"{VERL} {KEYS} data.max_prompt_length=", "run.sh:7: `data.max_prompt_length`: must be a whole"),
    "no number": (f"{VERL} {KEYS} trainer.nnodes=two", "run.sh:7: `trainer.nnodes`: must be a whole number, not two"),
    "negative": (f"{VERL} {KEYS} trainer.nnodes=-1", "run.sh:7: `trainer.nnodes`: must be a whole number above 0"),
    "not a number": (f"{VERL} {KEYS} actor_rollout_ref.actor.optim.lr=nan", "run.sh:7: `actor_rollout_ref.actor.opt"),
    "out of range": (
        f"{VERL} {KEYS} actor_rollout_ref.rollout.temperature=-1",
        "run.sh: policy.generate.temperature=-1",
    ),
    "too many devices": (f"{VERL} {KEYS} trainer.nnodes=100000000", "run.sh:1: `nnodes`: 800,000,000 devices"),
    "does not divide": (
        f"{VERL} {KEYS} actor_rollout_ref.rollout.tensor_model_parallel_size=3",
        "run.sh:7: `actor_rollout_ref.rollout.tensor_model_parallel_size`: 3 does not divide 8 devices\n",
    ),
    "no model": (f"{VERL} data.train_batch_size=4", "run.sh: actor_rollout_ref.model.path: names no model\n"),
    "unset model": (
        f"{VERL} actor_rollout_ref.model.path=$MODEL",
        "run.sh:1: `actor_rollout_ref.model.path`: names no",
    ),
    "unknown model": (f"{VERL} actor_rollout_ref.model.path=qwen3-0.6", "no model `qwen3-0.6`\n  hint: did you mean"),
    "flag without value": (f"{OPENRLHF} --pretrain", "run.sh:1: `--pretrain`: has no value\n"),
    "flag without one of two": (
        f"{OPENRLHF} --eps_clip_low_high 0.2 --bf16",
        "run.sh:1: `--eps_clip_low_high`: has no value\n",
    ),
    "stray word": (f"{OPENRLHF} --bf16 stray", "run.sh:1: `stray`: does not belong to a flag\n"),
    "contradiction": (
        f"{OPENRLHF} --pretrain a/b --colocate_all_models --actor_num_gpus_per_node 8 --vllm_num_engines 2",
        "run.sh:1: `vllm_num_engines`: 2 engines of 1 devices are not the 8 devices that they share\n",
    ),
    "other contradiction": (
        f"{OPENRLHF} --pretrain a/b --colocate_actor_ref --ref_num_gpus_per_node 4 --vllm_num_engines 2",
        "run.sh:1: `colocate_actor_ref`: the reference has (1, 4) machines and devices of each",
    ),
    "no sampler": (f"{OPENRLHF} --pretrain a/b", "run.sh: --vllm.num_engines: samples without vLLM"),
    "another system": (
        "uv run examples/run_grpo.py --config x.yaml",
        "run.sh:1: `examples/run_grpo.py`: NeMo RL starts",
    ),
    "no policy": (
        "torchrun -m verl.trainer.fsdp_sft_trainer a=1",
        "run.sh:1: `verl.trainer.fsdp_sft_trainer`: does not train",
    ),
    "grows without end": ("A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 20, "run.sh:6: its variables grow without end\n"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_script_that_cannot_be_read_says_where_and_why(flowgraph: Run, case: str) -> None:
    script, text = BAD[case]
    Path("run.sh").write_text(script)
    assert refused(flowgraph("import", "run.sh", "-o", "imported.json")).startswith(text)
    assert not Path("imported.json").exists()


BAD_YAML = {
    "a: 1\na: 2": "config.yaml:2: `a` is repeated; it is first on line 1\n",
    "a: [1": "config.yaml:1: is not YAML: ",
    "a: &x 1\nb: *x": "config.yaml:2: an alias stands for another part; write it out\n",
    "- a": "config.yaml:1: has no keys\n",
    "": "config.yaml:1: has no keys\n",
    "a: " + "[" * 5000: "config.yaml:1: nests too deep\n",
    "a: 1": "config.yaml: actor_rollout_ref.model.path: names no model\n",
    f"{VERL} a=1": "config.yaml:1: ",
}


@pytest.mark.parametrize("text", BAD_YAML, ids=lambda text: text[:12])
def test_a_configuration_that_cannot_be_read_says_where_and_why(flowgraph: Run, text: str) -> None:
    Path("config.yaml").write_text(text)
    assert refused(flowgraph("import", "config.yaml")).startswith(BAD_YAML[text])


FILES: dict[str, tuple[bytes | None, str]] = {
    "nowhere.sh": (None, "nowhere.sh: cannot be read: No such file or directory\n"),
    ".": (None, ".: cannot be read: Is a directory\n"),
    "binary.sh": (bytes(range(256)), "binary.sh: is not text\n"),
    "large.sh": (b"# " + b"x" * 4_000_000, "large.sh: cannot be read: it is larger than 4,000,000 bytes\n"),
    "long.sh": (b"# " + b"x" * 1_000_001, "long.sh:1: more than 1,000,000 characters are not a launch script\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_script_is_named(flowgraph: Run, name: str) -> None:
    content, text = FILES[name]
    if content is not None:
        Path(name).write_bytes(content)
    assert refused(flowgraph("import", name)) == text


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this machine has no endless file")
def test_a_file_without_end_is_read_no_further_than_a_script_goes(flowgraph: Run) -> None:
    assert refused(flowgraph("import", "/dev/zero")).startswith("/dev/zero: cannot be read: it is not a plain file")


OPTIONS: dict[tuple[str, ...], tuple[int, str]] = {
    ("--device", "h1000"): (
        2,
        "--device: unknown device `h1000` whose speed is known\n  hint: did you mean `h100`?",
    ),
    ("--device", "gpu-80GiB"): (2, "--device: unknown device `gpu-80GiB` whose speed is known\n"),
    ("--device", "h100,1x8xa100"): (2, "--device: unknown device `h100,1x8xa100` whose speed is known\n"),
    ("--device", ""): (2, "--device: unknown device `` whose speed is known\n"),
    ("--device", "h100-much"): (1, "1x8xh100-much: memory 'much' "),
    ("--prompt-tokens", "many"): (1, "--prompt-tokens: tokens='many': "),
    ("--response-tokens", "mean=4k,max=1k"): (1, "--response-tokens: "),
    ("--profile", "nowhere.toml"): (2, "--profile nowhere.toml: cannot be read: No such file or directory\n"),
    ("-o", "nowhere/plan.json"): (2, "nowhere/plan.json: cannot be written: No such file or directory\n"),
}


@pytest.mark.parametrize("arguments", OPTIONS, ids=" ".join)
def test_an_option_that_means_nothing_is_refused(flowgraph: Run, arguments: tuple[str, ...]) -> None:
    Path("run.sh").write_text(f"{VERL} {KEYS}")
    code, text = OPTIONS[arguments]
    assert refused(flowgraph("import", "run.sh", *arguments), code).startswith(text)
