#!/usr/bin/env bash
# The plan of ppo for verl 0.7.1, written by flowgraph.
# - critic.train has the pool `p2`; verl's trainer keeps policy, critic and reference on one pool: they share 16 devices
# - the dual clip is off in the flow, and always on in verl: clip_ratio_c=1e+06 is out of reach
set -euo pipefail

# The fully asynchronous trainer is in verl's repository, not in its wheel: run this from a checkout of v0.7.1.
python3 -m verl.experimental.fully_async_policy.fully_async_main \
    data.train_files="${TRAIN_FILES:?Parquet files of prompts, one or [a,b]}" \
    data.val_files="${VAL_FILES:?Parquet files to check with}" \
    data.max_prompt_length=1024 \
    data.max_response_length=256 \
    data.filter_overlong_prompts=True \
    algorithm.adv_estimator=gae \
    algorithm.gamma=1.0 \
    algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=True \
    algorithm.kl_penalty=kl \
    algorithm.kl_ctrl.kl_coef=0.02 \
    algorithm.rollout_correction.bypass_mode=True \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1.0e-06 \
    actor_rollout_ref.actor.optim.weight_decay=0.0 \
    actor_rollout_ref.actor.optim.clip_grad=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.ppo_epochs=1 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.policy_loss.loss_mode=vanilla \
    actor_rollout_ref.actor.clip_ratio=0.2 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.actor.clip_ratio_c=1000000.0 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=-1 \
    actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=1 \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=16384 \
    actor_rollout_ref.ref.fsdp_config.fsdp_size=-1 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.ref.fsdp_config.model_dtype=bfloat16 \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=1 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    critic.model.path=Qwen/Qwen2.5-7B-Instruct \
    critic.model.use_remove_padding=True \
    critic.model.enable_gradient_checkpointing=True \
    critic.optim.lr=1.0e-06 \
    critic.optim.weight_decay=0.0 \
    critic.optim.clip_grad=1.0 \
    critic.ppo_mini_batch_size=8 \
    critic.ppo_epochs=1 \
    critic.ppo_max_token_len_per_gpu=16384 \
    critic.cliprange_value=0.2 \
    trainer.critic_warmup=0 \
    critic.strategy=fsdp2 \
    critic.ulysses_sequence_parallel_size=1 \
    trainer.nnodes=2 \
    trainer.n_gpus_per_node=8 \
    trainer.project_name=flowgraph \
    trainer.experiment_name=ppo \
    trainer.logger='["console"]' \
    critic.model.fsdp_config.fsdp_size=-1 \
    critic.model.fsdp_config.reshard_after_forward=True \
    critic.model.fsdp_config.param_offload=True \
    critic.model.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.hybrid_engine=False \
    actor_rollout_ref.rollout.free_cache_engine=False \
    data.train_batch_size=0 \
    data.gen_batch_size=1 \
    rollout.nnodes=1 \
    rollout.n_gpus_per_node=8 \
    rollout.total_rollout_steps="${TOTAL_PROMPTS:?how many prompts to train on in all}" \
    async_training.require_batches=64 \
    async_training.trigger_parameter_sync_step=1 \
    async_training.staleness_threshold=0 \
    "$@"
