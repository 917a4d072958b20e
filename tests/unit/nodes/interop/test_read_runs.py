"""Runs of verl and OpenRLHF as flows of ours. The scripts have the forms of those that the systems ship."""

from __future__ import annotations

from typing import Any

import pytest

from flowgraph.cluster.plan import Layout
from nodes.interop import UNREAD, Imported, read_command, read_yaml
from tests.looped import looped

CLASSIC = r"""
set -x
train_path=$HOME/data/gsm8k/train.parquet
files="['$train_path', '$train_path']"

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator={estimator} \
    data.train_files="$files" \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    trainer.logger=['console','wandb'] \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=2 \
    {more} $@
"""

WITH_ARRAYS = r"""#!/usr/bin/env bash
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
NGPUS=${NGPUS:-8}
LENGTH=$((1024 * 2))
case "${DEVICE}" in
    npu)
        NGPUS=16
        ;;
esac
DATA=(
    algorithm.adv_estimator=grpo
    data.max_prompt_length=${LENGTH}
    data.max_response_length=${LENGTH}  # the same
    algorithm.use_kl_in_reward=False
)
ACTOR=(
    actor_rollout_ref.model.path=${MODEL_PATH}
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((LENGTH * 3))
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=${KL:-0.001}
    actor_rollout_ref.ref.fsdp_config.param_offload=True
)
LAUNCH=(python3)
"${LAUNCH[@]}" -m verl.trainer.main_ppo \
    "${DATA[@]}" \
    "${ACTOR[@]}" \
    trainer.n_gpus_per_node="${NGPUS}" \
    "$@" 2>&1 | tee run.log
"""

DAPO = r"""
gen=$((512 * 3))
python3 -m recipe.dapo.main_dapo \
    actor_rollout_ref.model.path="${MODEL_PATH:-"${HOME}/models/Qwen2.5-32B"}" \
    algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True algorithm.filter_groups.max_num_gen_batches=10 \
    data.train_batch_size=512 data.gen_batch_size=${gen} data.max_prompt_length=2048 data.max_response_length=20480 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.actor.ulysses_sequence_parallel_size=8 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=22528 \
    +actor_rollout_ref.model.override_config.attention_dropout=0. \
    reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True \
    custom_reward_function.overlong_buffer.enable=True custom_reward_function.overlong_buffer.len=4096 \
    custom_reward_function.overlong_buffer.penalty_factor=1.0 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.nnodes=16
"""

OPENRLHF = r"""
set -x
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{{"working_dir": "/openrlhf"}}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node {ref} \
   --critic_num_nodes 1 --critic_num_gpus_per_node {critic} \
   --actor_num_nodes 1 --actor_num_gpus_per_node {actor} \
   --vllm_num_engines {engines} --vllm_tensor_parallel_size 2 \
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
   --remote_rm_url /rewards/reward_func.py \
   --train_batch_size 128 --rollout_batch_size 1024 --n_samples_per_prompt 1 \
   --prompt_max_len 1024 --generate_max_len 512 --zero_stage 3 --bf16 \
   --actor_learning_rate 5e-7 --critic_learning_rate 9e-6 --init_kl_coef 0.01 \
   --gradient_checkpointing --adam_offload --micro_train_batch_size 2 --micro_rollout_batch_size 4 {more}

# You could also try
#   --kl_estimator k2 \
"""

DOTTED = r"""
ARGS=(
   --actor.model_name_or_path "Qwen/Qwen3-4B"
   # --critic.model_name_or_path x
   --data.max_len 74240
   --rollout.max_new_tokens 64000
   --rollout.batch_size 128
   --rollout.n_samples_per_prompt 8
   --train.batch_size 1024
   --train.async_enable
   --train.async_queue_size 2
   --actor.num_nodes 1
   --actor.num_gpus_per_node 4
   --vllm.num_engines 2
   --vllm.tensor_parallel_size 2
   --algo.advantage.estimator group_norm
   --algo.kl.init_coef 0
   --ds.ring_attn_size 2
)
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray ${ARGS[@]}
"""


def classic(estimator: str, more: str = "") -> Imported:
    """Read the classic form of verl's examples."""
    return read_command(CLASSIC.replace("{estimator}", estimator).replace("{more}", more))


def openrlhf(more: str = "", **sizes: int) -> Imported:
    """Read the classic form of OpenRLHF's examples."""
    return read_command(OPENRLHF.format(**{"ref": 2, "critic": 4, "actor": 4, "engines": 2, **sizes}, more=more))


def setting(found: Imported, name: str) -> str:
    """Return a setting by name."""
    return {key: value for key, _, value in (each.partition("=") for each in found.settings)}[name]


def test_gpg_of_the_classic_form_is_the_flow_that_ships() -> None:
    found = classic("gpg", "actor_rollout_ref.actor.use_gpg_loss=True")
    assert (found.system, found.version, found.flow) == ("verl", "0.9.1", "gpg")
    assert found.models == {"policy": "Qwen/Qwen2-7B-Instruct"}
    assert (found.batch, found.prompt_tokens, found.response_tokens) == (1024, 512, 1024)
    assert (found.devices, found.parts[0].devices_per_node) == (16, 8)
    assert found.engines == {"train": "fsdp", "sample": "sglang", "infer": "fsdp"}
    assert found.layouts["policy.train"] == Layout(data=16, sharding="full")
    assert found.layouts["policy.sample"] == Layout(data=8, tensor=2)
    assert found.running["policy.train"].offload == ("optimizer",)
    assert found.running["policy.train"].micro_batch_tokens == 4 * (512 + 1024)
    assert found.running["policy.sample"].cache_share == 0.6
    assert setting(found, "policy.generate.n") == "5"
    assert setting(found, "policy.update.minibatch") == "256"
    told = dict(found.ignored)
    assert told["actor_rollout_ref.actor.use_gpg_loss"].startswith("verl 0.9.1 has no such key; did you mean")
    assert told["trainer.logger"] == "no plan depends on it"


def test_what_is_not_told_is_as_verl_has_it_by_default() -> None:
    found = read_command("python -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b algorithm.adv_estimator=gpg")
    assert (found.batch, found.prompt_tokens, found.response_tokens, found.devices) == (1024, 512, 512, 8)
    assert found.layouts["policy.sample"].tensor == 2
    assert found.running["policy.sample"].cache_share == 0.5
    assert found.running["policy.train"].micro_batch_tokens is None


def test_ppo_has_its_critic_and_says_that_no_reference_runs() -> None:
    more = "critic.model.path=org/critic critic.optim.lr=1e-5 critic.model.fsdp_config.param_offload=True"
    found = classic("gae", more)
    assert found.flow == "ppo"
    assert found.models["critic"] == "org/critic"
    assert found.unused == ("ref",)
    assert setting(found, "kl_penalized.weight") == "0.0"
    assert setting(found, "critic.update.lr") == "1e-05"
    assert found.version == "0.7.1"  # its critic's FSDP stands below critic.model
    assert found.running["critic.train"].offload == ("parameters",)
    assert classic("gae", "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.003").unused == ()


def test_a_reward_model_is_told_to_be_left_out() -> None:
    found = classic("gae", "reward_model.enable=True reward_model.model.path=org/rm")
    assert "the reward model `org/rm` is left out: shipped flows score by a rule" in found.notes


@looped(
    "more, flow",
    [
        ("actor_rollout_ref.actor.use_kl_loss=True", "grpo"),
        ("actor_rollout_ref.actor.use_kl_loss=False", "dr_grpo"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "gspo"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=cispo", "cispo"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "gmpo"),
        ("algorithm.filter_groups.enable=True", "dapo"),
        ("trainer.v1.trainer_mode=colocate_async", "decoupled_ppo"),
    ],
)
def test_grpo_is_told_apart_by_its_loss_and_its_kl(more: str, flow: str) -> None:
    assert classic("grpo", more).flow == flow


@looped(
    "estimator, flow",
    [
        ("rloo", "rloo"),
        ("rloo_vectorized", "rloo"),
        ("remax", "remax"),
        ("reinforce_plus_plus", "reinforce_pp"),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
        ("opo", "opo"),
        ("gdpo", "gdpo"),
    ],
)
def test_each_estimator_has_its_flow(estimator: str, flow: str) -> None:
    assert classic(estimator).flow == flow


def test_an_estimator_without_a_flow_is_said() -> None:
    found = classic("grpo_passk")
    assert found.flow == "dr_grpo"
    assert found.notes[0].startswith("no shipped flow has verl's advantages `grpo_passk`")


def test_the_form_with_arrays_defaults_and_conditions_is_read() -> None:
    found = read_command(WITH_ARRAYS)
    assert (found.flow, found.models["policy"], found.models["ref"]) == ("grpo", "Qwen/Qwen3-4B", "Qwen/Qwen3-4B")
    assert (found.devices, found.prompt_tokens) == (8, 2048)  # what stands in `case` is not believed
    assert found.running["policy.train"].micro_batch_tokens == 6144
    assert found.running["ref.infer"].micro_batch_tokens == 6144  # as verl's own default refers to the actor's
    assert found.running["ref.infer"].offload == ("parameters",)
    assert setting(found, "policy.update.scale.factor") == "0.001"


def test_dapo_draws_more_prompts_than_it_keeps() -> None:
    found = read_command(DAPO)
    assert (found.flow, found.batch, found.devices) == ("dapo", 1536, 128)
    assert found.models == {"policy": "~/models/Qwen2.5-32B"}
    assert setting(found, "policy.refill.groups") == "512"
    assert setting(found, "policy.refill.rounds") == "10"
    assert setting(found, "policy.update.clipped.eps_high") == "0.28"
    assert setting(found, "overlong_penalty.buffer") == "4096"
    assert found.layouts["policy.train"] == Layout(data=16, sequence=8, sharding="full")
    assert found.running["policy.train"].micro_batch_tokens == 22528 * 8


def test_a_value_that_only_a_shell_knows_is_reported() -> None:
    found = classic("gpg", "trainer.project_name=$PROJECT actor_rollout_ref.actor.ppo_epochs=$(cat epochs)")
    told = dict(found.ignored)
    assert told["actor_rollout_ref.actor.ppo_epochs"] == "only a running shell knows its value: a command's output"
    assert setting(found, "policy.update.epochs") == "1"


def test_megatron_is_known_by_its_configuration() -> None:
    keys = "actor_rollout_ref.actor.megatron"
    more = f"{keys}.tensor_model_parallel_size=4 {keys}.pipeline_model_parallel_size=2 {keys}.param_offload=True"
    script = CLASSIC.replace("{estimator}", "grpo").replace("{more}", more)
    found = read_command(script.replace("main_ppo \\", "main_ppo --config-name='ppo_megatron_trainer.yaml'\\"))
    assert found.engines["train"] == "megatron"
    assert found.layouts["policy.train"] == Layout(data=2, tensor=4, pipeline=2, sharding="optimizer")
    assert found.running["policy.train"].offload == ()
    assert any("offloads only weights between uses" in note for note in found.notes)
    assert found.running["policy.train"].checkpointing == "none"


def test_pools_apart_are_read_from_the_asynchronous_trainers() -> None:
    new = "trainer.v1.trainer_mode=separate_async trainer.v1.separate_async.num_warmup_batches=2 "
    new += "actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.n_gpus_per_node=4"
    found = classic("grpo", new)
    assert (found.flow, found.lag, found.devices, found.placement) == ("decoupled_ppo", 2, 20, "split:openrlhf")
    assert [part.devices for part in found.parts] == [16, 4]
    old = CLASSIC.replace("{estimator}", "grpo").replace(
        "{more}", "rollout.nnodes=1 async_training.staleness_threshold=0.5 async_training.require_batches=4"
    )
    older = read_command(
        old.replace("verl.trainer.main_ppo", "verl.experimental.fully_async_policy.fully_async_main").replace(
            "train_batch_size=1024", "train_batch_size=0"
        )
    )
    assert (older.lag, older.batch, older.devices) == (1, 256 * 4 * 4, 24)


def test_openrlhf_with_each_model_on_its_own_devices() -> None:
    found = openrlhf()
    assert (found.system, found.version, found.flow) == ("openrlhf", "0.8.11", "ppo")
    assert (found.batch, found.prompt_tokens, found.response_tokens) == (1024, 1024, 512)
    assert (found.devices, found.placement) == (14, "standalone:each-role")
    assert found.layouts["critic.train"] == Layout(data=4, sharding="full")
    assert found.layouts["policy.sample"] == Layout(data=2, tensor=2)
    assert found.running["policy.train"].checkpointing == "full"
    assert found.running["policy.train"].offload == ("optimizer",)
    assert found.running["policy.train"].micro_batch_tokens == 2 * 1536
    assert found.running["ref.infer"].micro_batch_tokens == 4 * 1536
    assert setting(found, "policy.update.minibatch") == "128"
    assert setting(found, "critic.update.lr") == "9e-06"
    assert "kl_estimator" not in dict(found.ignored)


def test_openrlhf_with_the_reference_beside_the_actor() -> None:
    found = openrlhf("--colocate_actor_ref", ref=4)
    assert (found.devices, found.placement) == (12, "split:openrlhf")


def test_openrlhf_with_all_on_one_pool() -> None:
    more = "--colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep --advantage_estimator group_norm"
    found = openrlhf(f"{more} --use_kl_loss --kl_estimator k3", actor=8, ref=8, engines=4)
    assert (found.flow, found.devices, found.placement) == ("grpo", 8, "hybrid:verl")
    assert found.running["policy.sample"].sleeps
    assert (found.running["policy.train"].offload, found.running["policy.train"].sleeps) == ((), True)
    assert setting(found, "group_normalize.deviation") == "true"


def test_openrlhf_of_dotted_flags_that_runs_ahead() -> None:
    found = read_command(DOTTED)
    assert (found.version, found.flow, found.lag) == ("0.11.2", "decoupled_ppo", 2)
    assert (found.prompt_tokens, found.response_tokens) == (10240, 64000)
    assert found.layouts["policy.train"] == Layout(data=2, sequence=2, sharding="gradients")
    assert found.placement == "split:openrlhf"


def test_engines_that_do_not_fill_the_shared_devices_are_refused() -> None:
    with pytest.raises(Exception, match="2 engines of 2 devices are not the 8 devices that they share"):
        openrlhf("--colocate_all_models", actor=8, ref=8)


def test_a_configuration_of_verl_is_read_as_its_command() -> None:
    text = """
defaults: [ppo_trainer, _self_]
algorithm: {adv_estimator: gae, use_kl_in_reward: true}
actor_rollout_ref:
  model: {path: org/name, lora_rank: 32}
  actor: {optim: {lr: 3e-6}, ppo_mini_batch_size: 64}
critic: {model: {path: org/name}}
data: {train_batch_size: 256}
trainer: {n_gpus_per_node: 4, unheard_of: 1}
"""
    found = read_yaml(text)
    assert (found.flow, found.batch, found.devices) == ("ppo", 256, 4)
    assert found.models["policy"] == "org/name+lora=32,alpha=16"
    assert setting(found, "policy.update.lr") == "3e-06"
    assert [key for key, _ in found.ignored] == ["trainer.unheard_of"]


def test_a_key_whose_default_refers_to_an_unknown_key_is_written_again() -> None:
    key = "actor_rollout_ref.ref.megatron.override_transformer_config"
    found = read_command(f"{VERL_COMMAND} {key}=8")
    assert (dict(found.ignored)[key], found.again) == (UNREAD, (f"{key}=8",))


def test_what_no_plan_depends_on_can_be_told_again_but_for_what_is_secret() -> None:
    more = "trainer.save_freq=20 custom_reward_function.path='/a b/c.py' reward_model.reward_manager=prime"
    found = read_command(f"{VERL_COMMAND} {more} trainer.experiment_name=x_$(date) ~trainer.logger")
    assert found.again == (
        "trainer.save_freq=20",
        "'custom_reward_function.path=/a b/c.py'",
        "reward_model.reward_manager=prime",
    )
    flags = "--pretrain a/b --vllm_num_engines 1 --actor_num_gpus_per_node 1 --use_wandb SECRET --save_steps -1 --bf16"
    other = read_command(f"python3 -m openrlhf.cli.train_ppo_ray {flags} --wandb_project 'two words'")
    assert other.again == ("--save_steps", "-1", "--bf16", "--wandb_project", "'two words'")
    assert "SECRET" not in repr(other.again)


VERL_COMMAND = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b"


@pytest.mark.parametrize(
    ("told", "note"),
    [
        ("", ""),  # verl reads the log-probs of what it drew, and so does a run of ours
        (
            "algorithm.rollout_correction.bypass_mode=True",
            "verl does not recompute log-probs of responses; the forecast",
        ),
        ("actor_rollout_ref.rollout.temperature=0", "verl recomputes log-probs of responses; the flow uses"),
    ],
)
def test_a_pass_that_only_one_of_both_has_is_said(told: str, note: str) -> None:
    said = [each for each in read_command(f"{VERL_COMMAND} {told}").notes if "forward pass" in each]
    assert [each.startswith(note) for each in said] == [True] * bool(note)


def test_a_reference_that_megatron_reads_is_not_sharded_whatever_it_is_told() -> None:
    keys = "actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.use_kl_loss=True"
    whole = " ".join(f"actor_rollout_ref.{own}.megatron.use_megatron_fsdp=True" for own in ("actor", "ref"))
    found = read_command(f"{VERL_COMMAND} {keys} {whole}")
    assert found.layouts["policy.train"].sharding == "full"
    assert found.layouts["ref.infer"].sharding == "optimizer"
    assert any(note.startswith("verl's Megatron does not shard the reference") for note in found.notes)


def test_a_whole_run_is_as_it_was(golden: Any) -> None:
    found = classic("grpo", "actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.offload=1")
    lines = [f"{name}: {value}" for name, value in vars(found).items()]
    golden("\n".join(lines), "interop/read/verl-grpo.txt")


# ------------------------------------------------------------------------- what the scripts that systems ship say


def verl(more: str, module: str = "verl.trainer.main_ppo") -> Imported:
    """Read a command of verl of a few keys."""
    return read_command(f"python3 -m {module} actor_rollout_ref.model.path=org/name {more}")


def test_weights_and_optimizer_that_verl_offloads_leave_the_device_between_uses() -> None:
    for own, engine in (("fsdp_config", ""), ("megatron", "model_engine=megatron")):
        keys = f"actor_rollout_ref.actor.{own}"
        both = verl(f"{engine} {keys}.param_offload=True {keys}.optimizer_offload=True").running["policy.train"]
        assert (both.offload, both.sleeps) == ((), True)
        one = verl(f"{engine} {keys}.optimizer_offload=True").running["policy.train"]
        assert (one.offload, one.sleeps) == (() if engine else ("optimizer",), False)
    own = verl("actor_rollout_ref.actor.fsdp_config.offload_policy=True").running["policy.train"]
    assert (own.offload, own.sleeps) == (("parameters", "gradients", "optimizer"), False)


@pytest.mark.parametrize(("fraction", "offload"), [("1.", ("optimizer",)), ("0.5", ()), ("0", ())])
def test_an_optimizer_of_megatron_steps_on_the_host_where_all_of_it_does(fraction: str, offload: Any) -> None:
    keys = "actor_rollout_ref.actor"
    override = f"+{keys}.optim.override_optimizer_config"
    more = f"{override}.optimizer_cpu_offload=True {override}.optimizer_offload_fraction={fraction}"
    found = verl(f"model_engine=megatron {keys}.megatron.param_offload=True {more}")
    running = found.running["policy.train"]
    assert (running.offload, running.sleeps) == (offload, bool(offload))
    assert any("0.5 of its optimizer on the host" in note for note in found.notes) == (fraction == "0.5")


def test_rows_of_a_micro_batch_are_known_where_they_have_no_padding() -> None:
    rows = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16"
    assert verl(f"{rows} actor_rollout_ref.model.use_remove_padding=True").rows_at_once == {"policy.train": 16}
    assert verl(f"{rows} actor_rollout_ref.model.use_remove_padding=False").rows_at_once == {}
    assert verl(f"{rows} actor_rollout_ref.actor.use_dynamic_bsz=True").rows_at_once == {}


def test_a_reference_that_verl_offloads_comes_for_each_pass_with_fsdp_and_once_with_megatron() -> None:
    kl = "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True"
    by_fsdp = verl(f"{kl} actor_rollout_ref.ref.fsdp_config.param_offload=True").running["ref.infer"]
    assert (by_fsdp.offload, by_fsdp.sleeps) == (("parameters",), False)
    keys = "model_engine=megatron actor_rollout_ref.ref.megatron.param_offload=True"
    by_megatron = verl(f"{kl} {keys}").running["ref.infer"]
    assert (by_megatron.offload, by_megatron.sleeps) == ((), True)


@looped(
    "degrees, expert",
    [
        ((4, 3, 4, None), 4),  # experts are cut by tensor ranks too
        ((4, 3, 4, 1), 1),  # four shares of experts, which the four tensor ranks of the plan are
        ((2, 1, 8, 1), 4),
        ((2, 1, 4, 2), 4),
        ((1, 1, 1, None), 1),
    ],
)
def test_experts_of_megatron_are_spread_as_the_plan_counts_them(degrees: Any, expert: int) -> None:
    names = ("tensor_model", "pipeline_model", "expert_model", "expert_tensor")
    keys = [f"actor_rollout_ref.actor.megatron.{name}_parallel_size" for name in names]
    told = " ".join(f"{key}={degree}" for key, degree in zip(keys, degrees, strict=True) if degree)
    found = verl(f"model_engine=megatron trainer.nnodes=12 algorithm.adv_estimator=gpg {told}")
    assert found.layouts["policy.train"].expert == expert
    assert not [note for note in found.notes if "shares of experts" in note]
    assert "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size" not in dict(found.ignored)


def test_more_shares_of_experts_than_the_plan_has_ranks_are_told() -> None:
    keys = "actor_rollout_ref.actor.megatron"
    told = f"{keys}.tensor_model_parallel_size=8 {keys}.expert_model_parallel_size=8"
    found = verl(f"model_engine=megatron algorithm.adv_estimator=gpg {told}")
    assert found.layouts["policy.train"].expert == 1
    assert f"{keys} has 64 shares of experts; the plan has 8, by tensor and data ranks" in found.notes


def test_experts_where_verl_draws_lie_on_all_devices_of_an_engine() -> None:
    rollout = "actor_rollout_ref.rollout"
    told = f"{rollout}.tensor_model_parallel_size=2 {rollout}.data_parallel_size=4 {rollout}.expert_parallel_size=8"
    assert verl(told).layouts["policy.sample"] == Layout(data=4, tensor=2, expert=4)
    assert verl(f"{rollout}.tensor_model_parallel_size=8 {rollout}.expert_parallel_size=8").layouts[
        "policy.sample"
    ] == Layout(data=1, tensor=8)
    with pytest.raises(Exception, match="3 does not divide 4 devices"):
        verl(f"{rollout}.data_parallel_size=3")


@pytest.mark.parametrize("where", ["rollout", "actor_rollout_ref.rollout"])
def test_the_one_step_off_trainer_names_the_devices_that_draw_in_either_place(where: str) -> None:
    told = f"trainer.n_gpus_per_node=6 {where}.nnodes=1 {where}.n_gpus_per_node=2 algorithm.adv_estimator=grpo"
    found = verl(told, "verl.experimental.one_step_off_policy.main_ppo")
    assert [part.devices for part in found.parts] == [6, 2]
    assert (found.devices, found.machines, found.lag) == (8, (1, 8), 1)


def test_a_lag_is_kept_where_the_flow_does_not_correct_for_it() -> None:
    told = "trainer.n_gpus_per_node=4 rollout.nnodes=1 rollout.n_gpus_per_node=4 algorithm.adv_estimator=grpo"
    module = "verl.experimental.one_step_off_policy.main_ppo"
    found = verl(f"{told} actor_rollout_ref.actor.use_kl_loss=True", module)
    assert (found.flow, found.lag) == ("grpo", 1)
    assert "responses are up to 1 updates old; the flow `grpo` does not correct for that" in found.notes
    far = verl(f"{told} async_training.staleness_threshold=9", "verl.experimental.fully_async_policy.fully_async_main")
    assert far.lag == 4
    assert "responses are up to 9 updates old; in the plan up to 4" in far.notes


def test_another_engine_that_trains_is_told_and_its_keys_are_read() -> None:
    keys = "actor_rollout_ref.actor.veomni"
    told = f"{keys}.param_offload=True {keys}.optimizer_offload=True {keys}.ulysses_parallel_size=2"
    found = verl(f"model_engine=veomni algorithm.adv_estimator=gpg {told}")
    assert "verl trains with `veomni`; FSDP replaces it in the plan" in found.notes
    assert found.layouts["policy.train"] == Layout(data=4, sequence=2, sharding="full")
    assert found.running["policy.train"].sleeps
    assert found.ignored == ()


def test_an_engine_that_is_not_planned_draws_as_vllm() -> None:
    found = verl("actor_rollout_ref.rollout.name=hf")
    assert found.engines["sample"] == "vllm"
    assert "no plan samples with `hf`: vllm replaces it" in found.notes


@pytest.mark.parametrize(
    "keys",
    [
        "reward_model.enable=True reward_model.model_path=org/rm",
        "reward_model.enable=True reward_model.model.path=org/rm",
        "reward.reward_model.enable=True reward.reward_model.model_path=org/rm",
    ],
)
def test_a_reward_model_is_named_wherever_verl_has_its_path(keys: str) -> None:
    assert "the reward model `org/rm` is left out: shipped flows score by a rule" in verl(keys).notes


def test_a_reward_model_of_its_own_says_how_many_devices_it_has() -> None:
    own = "reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True"
    notes = verl(f"{own} reward.reward_model.nnodes=2 reward.reward_model.n_gpus_per_node=4").notes
    assert "the reward model with 8 of the run's devices is left out: shipped flows score by a rule" in notes
    notes = openrlhf("--reward_pretrain org/rm --reward_num_gpus_per_node 2 --remote_rm_url ''").notes
    assert "the reward model `org/rm` with 2 of the run's devices is left out: shipped flows score by a rule" in notes


def test_groups_that_are_drawn_anew_are_told_where_the_flow_does_not() -> None:
    notes = verl("algorithm.adv_estimator=rloo algorithm.filter_groups.enable=True").notes
    assert "the run replaces groups without signal; the flow `rloo` trains on all groups" in notes
    notes = openrlhf("--advantage_estimator reinforce_baseline --dynamic_filtering").notes
    assert "the run replaces groups without signal; the flow `reinforce_pp_baseline` trains on all groups" in notes


def test_a_configuration_that_inherits_from_megatrons_is_of_megatron() -> None:
    text = "defaults:\n  - ppo_megatron_trainer\n  - _self_\nactor_rollout_ref: {model: {path: a/b}}\n"
    assert read_yaml(text).engines["train"] == "megatron"
    notes = read_yaml(text.replace("ppo_megatron_trainer", "'mine'")).notes
    assert "the configuration `mine` is not read: verl's defaults replace it" in notes


@pytest.mark.parametrize("version", ["0.5.0", "0.7.1", "0.9.1"])
def test_a_whole_configuration_is_its_defaults(version: str) -> None:
    import yaml

    from nodes.interop.keys import keys

    tree: dict[str, Any] = {}
    for name, value in keys("verl", version).defaults.items():
        at = tree
        for part in name.split(".")[:-1]:
            at = at.setdefault(part, {})
        at[name.rpartition(".")[2]] = value
    tree["actor_rollout_ref"]["model"]["path"] = "org/name"
    found = read_yaml(yaml.safe_dump(tree))
    short = read_yaml("actor_rollout_ref: {model: {path: org/name}}")
    assert found.version == version
    assert (found.flow, found.settings, found.parts) == (short.flow, short.settings, short.parts)
    assert not [key for key, why in found.ignored if "no such key" in why]


SLURM = """#!/bin/bash
#SBATCH -N 2
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=( $nodes )
node_1=${nodes_array[0]}
srun -w "$node_1" bash -c \\
    "ray start --head --port=6379 --block" &>> log &
for ((i = 1; i < 2; i++)); do
  sleep 1s;
done
srun --overlap -w "$node_1" bash -c \\
"pip install ray \\
&& ray job submit --runtime-env-json='{\\"working_dir\\": \\"/openrlhf\\"}' \\
    -- python3 -m openrlhf.cli.train_ppo_ray \\
    --ref_num_gpus_per_node 4 --critic_num_gpus_per_node 4 --actor_num_gpus_per_node 4 \\
    --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_actor_ref \\
    --pretrain org/name --remote_rm_url /reward.py --use_wandb {wandb_token}" &>> log
"""


def test_a_command_in_the_text_of_another_shell_is_read() -> None:
    found = read_command(SLURM)
    assert (found.flow, found.placement, found.devices) == ("ppo", "split:openrlhf", 16)
    assert found.machines == (2, 8)
    with pytest.raises(Exception, match=r"line 17: `remote_rm_url`|line 16"):
        read_command(SLURM.replace("--vllm_num_engines 4", "--vllm_num_engines four"))


@pytest.mark.parametrize(
    ("more", "sizes", "machines"),
    [
        ("--colocate_actor_ref", {"ref": 2, "critic": 2, "actor": 2}, (1, 8)),
        ("", {"ref": 2, "critic": 4, "actor": 4}, (2, 8)),
        ("", {"ref": 8, "critic": 8, "actor": 8, "engines": 4}, (4, 8)),
        ("", {"ref": 1, "critic": 1, "actor": 1, "engines": 1}, (1, 5)),
    ],
)
def test_parts_of_few_devices_share_machines(more: str, sizes: dict[str, int], machines: tuple[int, int]) -> None:
    assert openrlhf(more, **sizes).machines == machines


def test_machines_are_counted_however_many_there_are() -> None:
    assert verl("trainer.nnodes=8192").machines == (8192, 8)
    assert verl("trainer.nnodes=4 trainer.n_gpus_per_node=4").machines == (4, 4)
    assert verl("trainer.n_gpus_per_node=16").machines == (1, 16)
    apart = "trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=2"
    six = "trainer.nnodes=2 trainer.n_gpus_per_node=6 actor_rollout_ref.rollout.n_gpus_per_node=2"
    assert verl(f"{apart} {six}").machines == (2, 8)


def test_a_reference_that_does_not_run_has_no_devices() -> None:
    found = openrlhf("--init_kl_coef 0")
    assert (found.unused, found.devices) == (("ref",), 12)


def test_a_reference_that_cannot_share_the_actors_devices_is_refused() -> None:
    with pytest.raises(Exception, match=r"the reference has .1, 2. machines and devices of each"):
        openrlhf("--colocate_actor_ref")


def test_a_budget_of_openrlhf_is_for_all_devices_that_share_a_row() -> None:
    dynamic = "--use_dynamic_batch --train_max_tokens_per_gpu 8192 --rollout_max_tokens_per_gpu 16384"
    found = openrlhf(f"{dynamic} --ds_tensor_parallel_size 2")
    assert found.running["policy.train"].micro_batch_tokens == 2 * 8192
    assert found.running["ref.infer"].micro_batch_tokens == 2 * 16384


def test_openrlhf_with_fsdp_shards_weights_whatever_stage_is_the_default() -> None:
    found = read_command(
        "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path a/b --vllm.num_engines 4 "
        "--vllm.tensor_parallel_size 2 --train.colocate_all --fsdp.param_dtype bf16 --fsdp.cp_size 2 "
        "--fsdp.enable_sleep --algo.advantage.estimator group_norm --algo.kl.init_coef 0"
    )
    assert found.layouts["policy.train"] == Layout(data=4, sequence=2, sharding="full")
    assert found.running["policy.train"].sleeps
    assert not [note for note in found.notes if "DeepSpeed" in note]


def test_the_older_flag_for_the_estimate_of_the_kl_is_read() -> None:
    more = "--advantage_estimator group_norm --use_kl_loss --use_kl_estimator_k3"
    found = openrlhf(more, critic=4)
    assert found.flow == "grpo"
    assert not [note for note in found.notes if "estimates the KL by" in note]
