"""Odd numbers in a command: each is read as its system reads it, or refused with its line."""

from __future__ import annotations

import pytest

from flowgraph.errors import UsageError
from nodes.interop import read_command
from tests.looped import looped

VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=org/name data.train_batch_size=64"
    " actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain org/name --vllm_num_engines 8 --actor_num_gpus_per_node 8"
    " --ref_num_gpus_per_node 8 --critic_num_gpus_per_node 8"
)
ASYNC = "trainer.v1.trainer_mode=colocate_async trainer.v1.colocate_async.num_warmup_batches=1"
CORRECTED = f"{ASYNC} algorithm.adv_estimator=grpo algorithm.rollout_correction.rollout_is=token"
THRESHOLD = "algorithm.rollout_correction.rollout_is_threshold"
REWARDS = "algorithm.adv_estimator=gdpo 'algorithm.gdpo_reward_keys=[a,b]'"
ODD = ("inf", "nan", "1e999", "0x10", "017", "1_", "1__0", "\u0663", "''")


def refused(command: str) -> str:
    """Return the text of the error that a command is refused with."""
    with pytest.raises(UsageError) as caught:
        read_command(command)
    return str(caught.value)


@looped("value", ODD)
@looped(
    "command",
    [
        f"{VERL} actor_rollout_ref.actor.optim.lr=",
        f"{VERL} actor_rollout_ref.rollout.n=",
        f"{OPENRLHF} --actor_learning_rate ",
        f"{OPENRLHF} --n_samples_per_prompt ",
        f"{OPENRLHF} --eps_clip_low_high 0.2 ",
        f"{VERL} {CORRECTED} {THRESHOLD}=",
        f"{VERL} actor_rollout_ref.actor.clip_ratio=",
    ],
)
def test_what_is_no_finite_number_is_refused_with_its_line(command: str, value: str) -> None:
    said = refused(command + value)
    assert said.startswith("line 1: `") and ("must be a" in said or "must be two numbers" in said)


@looped("value", [*ODD[:-1], "true", "null"])
def test_a_weight_of_a_reward_is_a_finite_number(value: str) -> None:
    said = refused(f'{VERL} {REWARDS} "algorithm.gdpo_reward_weights=[0.5,{value}]"')
    assert said.startswith("line 1: `algorithm.gdpo_reward_weights`: must be two numbers")


def test_true_is_no_number_and_two_bounds_are_none_that_the_flow_has() -> None:
    assert refused(f"{VERL} {CORRECTED} {THRESHOLD}=True") == f"line 1: `{THRESHOLD}`: must be a number, not True"
    found = read_command(f"{VERL} {CORRECTED} {THRESHOLD}=0.5_2.0")
    assert "the run leaves out importance weights outside of 0.5_2.0; the flow truncates them" in found.notes
    assert "importance_weights.cap=3.0" in read_command(f"{VERL} {CORRECTED} {THRESHOLD}=3.0").settings


def test_a_number_that_is_told_to_be_null_is_said() -> None:
    key = "actor_rollout_ref.actor.optim.lr"
    note = f"`{key}` is set to null: the flow's own number is used instead, if it has one"
    assert note in read_command(f"{VERL} {key}=null").notes
    assert read_command(f"{VERL} actor_rollout_ref.actor.clip_ratio=null").settings


def test_numbers_with_thousands_are_read_as_both_systems_read_them() -> None:
    assert "policy.generate.n=1000" in read_command(f"{VERL} actor_rollout_ref.rollout.n=1_000").settings
    assert "policy.generate.n=1000" in read_command(f"{OPENRLHF} --n_samples_per_prompt 1_000").settings


@looped("text", ["10#08", "N * 2", "017", "1_000", "0b11", "0o17", "M"])
def test_arithmetic_that_a_shell_reads_otherwise_is_left_to_a_shell(text: str) -> None:
    found = read_command(f"N=010\nM=1_0\n{VERL} actor_rollout_ref.rollout.n=$(({text}))")
    assert [key for key, why in found.ignored if "only a running shell knows" in why] == ["actor_rollout_ref.rollout.n"]
    assert "policy.generate.n=32" in read_command(f"N=0x10\n{VERL} actor_rollout_ref.rollout.n=$((0x10*2))").settings


def test_degrees_and_devices_beyond_all_that_there_is_take_no_time() -> None:
    many = "2147483647"
    key = "actor_rollout_ref.actor.fsdp_config.expert_parallel_size"
    assert read_command(f"{VERL} ++{key}={many}").layouts["policy.train"].expert == 8
    said = refused(f"{VERL} ++{key}=2147483646 trainer.nnodes={many} trainer.n_gpus_per_node=1")
    assert said == "line 1: `nnodes`: 2,147,483,647 devices, where a cluster has at most 65,536"
