#!/usr/bin/env bash
# The plan of gpg for openrlhf 0.9.10, written by flowgraph.
# - the policy's weights leave the device between uses; DeepSpeed sleeps only if all models share devices
# - OpenRLHF does not have the loss `policy_gradient`, only ppo and gspo: ppo replaces it; its gradient is the same for one step per batch
# - GPG's advantages are centred scores times alpha; OpenRLHF has centred scores (dr_grpo), alpha 1
set -euo pipefail

ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" \
    -- python3 -m openrlhf.cli.train_ppo_ray \
    --pretrain Qwen/Qwen2.5-7B-Instruct \
    --remote_rm_url "${REWARD_FILE:?a Python file with a function reward_func}" \
    --prompt_data "${PROMPT_DATA:?a data set of prompts}" \
    --input_key "${INPUT_KEY:-input}" \
    --apply_chat_template \
    --max_len 1280 \
    --max_new_tokens 256 \
    --rollout_batch_size 512 \
    --n_samples_per_prompt 16 \
    --temperature 1.0 \
    --train_batch_size 8192 \
    --max_epochs 1 \
    --use_dynamic_batch \
    --train_max_tokens_per_gpu 16384 \
    --rollout_max_tokens_per_gpu 16384 \
    --packing_samples \
    --actor_num_nodes 1 \
    --actor_num_gpus_per_node 8 \
    --vllm_num_engines 4 \
    --vllm_tensor_parallel_size 2 \
    --vllm_gpu_memory_utilization 0.6 \
    --vllm_sync_backend nccl \
    --zero_stage 3 \
    --ds_tensor_parallel_size 1 \
    --ring_attn_size 1 \
    --param_dtype bf16 \
    --adam_offload \
    --gradient_checkpointing \
    --actor_learning_rate 1.0e-06 \
    --l2 0.0 \
    --max_norm 1.0 \
    --lr_scheduler constant \
    --advantage_estimator dr_grpo \
    --policy_loss_type ppo \
    --entropy_loss_coef 0.03 \
    --init_kl_coef 0 \
    "$@"
