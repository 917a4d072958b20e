"""What systems are told of long rows: how they are spread, how many tokens go through at once, and of their logits."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flowgraph import Loss, flow
from flowgraph.cluster.plan import Layout, RoleSettings, Sharding
from flowgraph.passes import named
from nodes import (
    Policy,
    Prompts,
    clipped,
    generate,
    logprobs,
    optimal_token_baseline,
    score,
    squared_probs,
    token_rewards,
    update,
)
from nodes.interop import export, read_command

ROW = 64 * 1024
ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
FUSED = "actor_rollout_ref.model.use_fused_kernels"


@flow
def energies(prompts: Prompts, policy: Policy) -> Policy:
    """Describe a baseline that is weighted by sums of squared probabilities."""
    rollout = generate(policy, prompts, n=4)
    old, earned = logprobs(policy, rollout), token_rewards(score(rollout), rollout.mask)
    squares = squared_probs(policy, rollout)
    advantages = optimal_token_baseline(earned, rollout.group, rollout.mask, old=rollout.logprobs, squares=squares)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old)

    return update(policy, loss)


def told(argv: Any, exported: Any) -> dict[str, str]:
    """Give verl's overrides by key."""
    return dict(each.partition("=")[::2] for each in argv(exported.files["run.sh"]) if "=" in each)


def spread(plan: Any, described: Any, engine: str = "fsdp", logits: str = "chunked") -> Any:
    """Give a plan whose rows are spread over four devices, two of which hold twice the longest row of log-probs."""
    sharding: Sharding = "full" if engine == "fsdp" else "optimizer"

    def change(placed: Any) -> Any:
        if placed.role.endswith(".sample"):
            return placed
        trains = placed.role.endswith(".train")
        layout = Layout(data=2, sequence=4, sharding=sharding)
        running = RoleSettings(
            precision="bfloat16",
            checkpointing="full" if trains else "none",
            micro_batch_tokens=ROW if trains else 2 * ROW,
            logits=logits,  # type: ignore[arg-type]
        )
        return placed.model_copy(update={"engine": engine, "layout": layout, "running": running})

    return plan(described, "hybrid", change=change)


def test_verl_is_told_of_ulysses_of_fused_kernels_and_of_tokens_on_each_device(
    graph: Any, plan: Any, argv: Any
) -> None:
    described = graph("grpo", {"policy.generate.max_tokens": ROW - 1024})
    found = told(argv, export(spread(plan, described), "verl", graph=described))
    assert found[FUSED] == "True"
    assert found[f"{ACTOR}.ulysses_sequence_parallel_size"] == "4"
    assert found[f"{REF}.ulysses_sequence_parallel_size"] == "4"
    assert found[f"{ACTOR}.ppo_max_token_len_per_gpu"] == str(ROW // 4)
    assert found[f"{REF}.log_prob_max_token_len_per_gpu"] == str(2 * ROW // 4)


@pytest.mark.parametrize("logits", ["whole", "chunked"])
@pytest.mark.parametrize("version", ["0.7.1", "0.9.1"])
def test_megatron_s_logits_and_context_come_back(version: str, logits: str, graph: Any, plan: Any) -> None:
    described = graph("grpo", {"policy.generate.max_tokens": ROW - 1024})
    made = spread(plan, described, "megatron", logits)
    exported = export(made, "verl", version, graph=described)
    assert f"{FUSED}={logits == 'chunked'}" in exported.files["run.sh"]
    read = read_command(exported.files["run.sh"])
    for placed in made.placed:
        if not placed.role.endswith(".sample"):
            assert read.layouts[placed.role] == placed.layout.model_copy(
                update={"sharding": read.layouts[placed.role].sharding}
            )
            assert read.running[placed.role].logits == logits
            assert read.running[placed.role].micro_batch_tokens == placed.running.micro_batch_tokens


def test_whole_logits_of_verl_s_fsdp_are_said_and_planned_in_chunks(graph: Any, plan: Any) -> None:
    described = graph("grpo")
    text = export(spread(plan, described), "verl", graph=described).files["run.sh"]
    plain = read_command(text.replace(f"{FUSED}=True", f"{FUSED}=False"))
    assert plain.running["policy.train"].logits == "chunked"
    assert any("use_fused_kernels=False" in note for note in plain.notes)
    assert not any("use_fused_kernels" in note for note in read_command(text).notes)


def test_kernels_follow_the_roles_that_are_placed(graph: Any, plan: Any) -> None:
    """GPG has no reference, whose logits would else be taken to come in chunks."""
    described = graph("gpg", {"policy.generate.max_tokens": ROW - 1024})
    exported = export(spread(plan, described, "megatron", "whole"), "verl", graph=described)
    assert f"{FUSED}=False" in exported.files["run.sh"]


def test_sums_of_squared_probabilities_need_whole_logits(plan: Any, argv: Any) -> None:
    described = named(energies.graph())
    exported = export(plan(described, "hybrid"), "verl", graph=described)
    assert told(argv, exported)[FUSED] == "False"
    assert any("squared probabilities" in note for note in exported.notes)
    assert exported.as_run is not None
    assert exported.as_run.running["policy.train"].logits == "whole"


@pytest.mark.parametrize("system", ["openrlhf", "nemo-rl"])
def test_systems_that_hold_all_logits_are_forecast_to(system: str, graph: Any, plan: Any) -> None:
    described = graph("grpo")
    exported = export(plan(described, "hybrid"), system, graph=described)
    assert exported.as_run is not None
    assert exported.as_run.running["policy.train"].logits == "whole"


def test_nemo_rl_is_told_of_chunks_of_log_probs_and_of_context(graph: Any, plan: Any) -> None:
    described = graph("ppo", {"policy.generate.max_tokens": ROW - 1024})
    exported = export(spread(plan, described), "nemo-rl", graph=described)
    policy = yaml.safe_load(exported.files["nemo_rl.yaml"])["policy"]
    assert policy["logprob_chunk_size"] == 1024
    assert policy["dtensor_cfg"]["context_parallel_size"] == 4
    assert policy["sequence_packing"]["train_mb_tokens"] == ROW
    assert yaml.safe_load(exported.files["nemo_rl.yaml"])["value"]["dtensor_cfg"]["context_parallel_size"] == 4
    whole = export(spread(plan, described, "megatron", "whole"), "nemo-rl", graph=described)
    megatron = yaml.safe_load(whole.files["nemo_rl.yaml"])["policy"]
    assert megatron["logprob_chunk_size"] is None
    assert megatron["megatron_cfg"]["defer_fp32_logits"] is False
    chunked = export(spread(plan, described, "megatron", "chunked"), "nemo-rl", graph=described)
    assert yaml.safe_load(chunked.files["nemo_rl.yaml"])["policy"]["megatron_cfg"]["defer_fp32_logits"] is True
