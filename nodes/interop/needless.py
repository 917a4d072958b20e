"""Keys of each system that change nothing of what a step computes: names, logs, checkpoints, data files, kernels.

Any other key that is not read may change it, and is told by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodes.interop.keys import System

_VERL = (
    r"trainer\.(?!v1\.).*|trainer\.v1\.(?:sync|separate_async\.hybrid_rollout|sampler\.sync_refill_failed_groups).*",
    r"async_training\.(?!partial_rollout).*|rollout\.total_rollout_steps|(?:global_profiler|skip|transfer_queue)\b.*",
    (
        r"data\.(?:(?:train|val)_\w+|\w+_key|dataloader_num_workers|filter_overlong_prompts\w*|return_\w+|(?:validation_)?"
        r"shuffle|seed|tokenizer|truncation|trust_remote_code|use_shm|image_patch_size)"
    ),
    r"reward(?:\.reward)?_model\.(?!enable$).*|reward\.num_workers|(?:reward\.)?sandbox_fusion\b.*",
    (
        r".*\.(?:checkpoint|profiler|fused_kernel_options|wrap_policy|turbo_config|engine_kwargs|checkpoint_engine|trace"
        r"|prometheus|val_kwargs|override_ddp_config|disaggregation|tiled_mlp)(?:\..*)?"
    ),
    (
        r".*\.(?:use_(?:torch_compile|remove_padding|fused_kernels|liger|prefix_grouper|shm|orig_params|dynamic_bsz"
        r"|dist_checkpointing|no_sync_for_gradient_accumulation|mbridge|rollout_log_probs)|trust_remote_code|external_lib"
        r"|tokenizer_path|hf_config_path|nccl_timeout|(?:data_loader_)?seed|shuffle|full_determinism|forward_\w+|pad_\w+"
        r"|entropy_checkpointing|entropy_from_logits\w*|calculate_\w+|strategy|dtype|vanilla_mbridge|dist_c\w+"
        r"|distrib_optim\w*|sequence_parallel|virtual_pipeline_model_parallel_size|dynamic_context_parallel"
        r"|max_seqlen_per_dp_cp_rank|\w*micro_batch_size\w*|\w*max_token_len_per_gpu|log_prob_\w+|rollout_n"
        r"|enable_activation_offload|save_contents|load_contents)"
    ),
    r".*\.override_transformer_config\.(?:attention_backend|recompute_\w+|\w*fusion\w*|moe_\w*(?:dispatcher|dtype)\w*)",
    (
        r"actor_rollout_ref\.rollout\.(?:cudagraph_capture_sizes|disable_log_stats|enable_\w+|enforce_eager|layered_summon"
        r"|load_format|logprobs_mode|max_model_len|max_num_\w+|mode|multi_stage_wake_up|(?:prompt|response)_length"
        r"|scheduling_policy|skip_tokenizer_init|standalone_gpu_memory_utilization|moe_load_balance\w*|update_weights\w*"
        r"|agent\.num_workers|do_sample|free_cache_engine|router_config_path)"
    ),
    r"actor_rollout_ref\.hybrid_engine",
)
_OPENRLHF = (
    (
        r"(?:ckpt|logger|eval)\..*|data\.(?!input_template).*|vllm\..*|train\.(?:seed|num_episodes|full_determinism_enable"
        r"|colocate_\w+|micro_batch_size)|use_ms|local_rank|critic\.save_value_network|rollout\.micro_batch_size"
    ),
    r"ds\.(?!lora|load_in_4bit).*|(?:actor|critic)\.gradient_checkpointing\w*|rollout\.vllm_generate_batch_size",
    r"(?:use_)?(?:wandb|tensorboard|swanlab)\w*|(?:save|ckpt|eval|logging|load_checkpoint|max_ckpt|disable_ds_ckpt)\w*",
    r"prompt_data\w*|prompt_split|input_key|label_key|apply_chat_template|max_samples|num_episodes|seed|bf16|perf",
    (
        r"packing_samples|attn_implementation|enforce_eager|enable_prefix_caching|vllm_sync\w*|vllm_generate_batch_size"
        r"|gradient_checkpointing\w*|flash_attn|overlap_comm|zpg|deepcompile|grad_accum_dtype|use_liger_kernel"
        r"|use_ds_universal_ckpt|disable_fast_tokenizer|full_determinism|ring_head_stride|value_head_prefix"
        r"|actor_init_on_gpu|micro_\w+_batch_size|colocate_\w+|input_template|\w+_num_(?:nodes|gpus_per_node)"
    ),
)
_PATTERNS: Mapping[System, re.Pattern[str]] = {
    "verl": re.compile("|".join(f"(?:{each})" for each in _VERL)),
    "openrlhf": re.compile("|".join(f"(?:{each})" for each in _OPENRLHF)),
}


def needless(system: System, key: str) -> bool:
    """Return whether no step computes anything else for a key.

    >>> needless("verl", "trainer.project_name"), needless("verl", "distillation.enabled")
    (True, False)
    """
    found = _PATTERNS.get(system)
    return found is not None and found.fullmatch(key) is not None
