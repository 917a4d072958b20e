#!/usr/bin/env bash
# The plan of dapo for openrlhf 0.9.10, written by flowgraph.
# - the flow clips around the sampler's log-probs; OpenRLHF recomputes them: one more forward pass
# - the flow generates for at most 3 rounds; OpenRLHF until the batch is full
# - the flow keeps groups whose scores differ; OpenRLHF those whose mean score is between 0 and 1
# - settings without a key are left out: `overlong_penalty.max_tokens=16`
set -euo pipefail

ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" \
    -- python3 -m openrlhf.cli.train_ppo_ray \
    --pretrain Qwen/Qwen2.5-7B-Instruct \
    --remote_rm_url "${REWARD_FILE:?a Python file with a function reward_func}" \
    --prompt_data "${PROMPT_DATA:?a data set of prompts}" \
    --input_key "${INPUT_KEY:-input}" \
    --apply_chat_template \
    --max_len 1040 \
    --max_new_tokens 16 \
    --rollout_batch_size 12 \
    --n_samples_per_prompt 16 \
    --temperature 1.0 \
    --train_batch_size 128 \
    --max_epochs 1 \
    --use_dynamic_batch \
    --train_max_tokens_per_gpu 16384 \
    --rollout_max_tokens_per_gpu 16384 \
    --packing_samples \
    --actor_num_nodes 1 \
    --actor_num_gpus_per_node 8 \
    --colocate_all_models \
    --vllm_num_engines 4 \
    --vllm_tensor_parallel_size 2 \
    --vllm_gpu_memory_utilization 0.6 \
    --vllm_sync_backend nccl \
    --vllm_enable_sleep \
    --deepspeed_enable_sleep \
    --zero_stage 3 \
    --ds_tensor_parallel_size 1 \
    --ring_attn_size 1 \
    --param_dtype bf16 \
    --gradient_checkpointing \
    --actor_learning_rate 1.0e-06 \
    --l2 0.0 \
    --max_norm 1.0 \
    --lr_scheduler constant \
    --advantage_estimator group_norm \
    --policy_loss_type ppo \
    --eps_clip_low_high 0.2 0.28 \
    --entropy_loss_coef 0.1 \
    --init_kl_coef 0 \
    --dynamic_filtering \
    --dynamic_filtering_reward_range 0 1 \
    --overlong_buffer_len 4 \
    --overlong_penalty_factor 1.0 \
    "$@"
