"""What a script has to change to become another command: keys, their values, and what they were."""

from __future__ import annotations

from nodes.interop import changes, read_command

VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --vllm_num_engines 1 --actor_num_gpus_per_node 1"
ACTOR = "actor_rollout_ref.actor"


def lines(script: str, before: str, after: str) -> list[str]:
    """Return the changes of a script as they are printed."""
    return [str(each) for each in changes(read_command(script), before, after)]


def test_what_a_key_was_is_what_the_script_told_it_else_its_default() -> None:
    before = f"{VERL} {ACTOR}.fsdp_config.param_offload=False trainer.nnodes=2"
    after = f"{VERL} {ACTOR}.fsdp_config.param_offload=True trainer.nnodes=4"
    assert lines(f"{VERL} trainer.nnodes=2", before, after) == [
        f"{ACTOR}.fsdp_config.param_offload=True  (was False)",
        "trainer.nnodes=4  (was 2)",
    ]


def test_a_key_that_is_gone_is_left_out_and_another_module_is_started() -> None:
    after = "python3 -m verl.experimental.fully_async_policy.fully_async_main actor_rollout_ref.model.path=a/b"
    assert lines(VERL, f"{VERL} trainer.v1.trainer_mode=sync", after) == [
        "python3 -m verl.experimental.fully_async_policy.fully_async_main  (was verl.trainer.main_ppo)",
        "without trainer.v1.trainer_mode  (was sync)",
    ]


def test_what_a_script_has_already_is_no_change() -> None:
    before, after = f"{VERL} trainer.nnodes=1", f"{VERL} trainer.nnodes=2"
    assert lines(f"{VERL} trainer.nnodes=2", before, after) == []
    shares = [f"{VERL} actor_rollout_ref.rollout.gpu_memory_utilization={share}" for share in ("0.3", "0.60")]
    assert lines(f"{VERL} actor_rollout_ref.rollout.gpu_memory_utilization=0.6", *shares) == []


def test_a_budget_of_tokens_brings_the_switch_beside_which_it_counts_and_that_all_its_budgets() -> None:
    script = f"{VERL} {ACTOR}.ppo_micro_batch_size_per_gpu=2"
    same = f"{ACTOR}.use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=9000"
    before, after = (f"{VERL} {same} {ACTOR}.ppo_max_token_len_per_gpu={tokens}" for tokens in (4000, 8000))
    assert lines(script, before, after) == [
        f"{ACTOR}.use_dynamic_bsz=True  (was False)",
        f"{ACTOR}.ppo_max_token_len_per_gpu=8000  (was 16384)",
    ]
    assert lines(f"{VERL} {ACTOR}.use_dynamic_bsz=True", before, after) == [
        f"{ACTOR}.ppo_max_token_len_per_gpu=8000  (was 16384)"
    ]


def test_flags_are_written_as_flags() -> None:
    budgets = "--use_dynamic_batch --train_max_tokens_per_gpu 4000"
    before, after = (f"{OPENRLHF} {budgets} --rollout_max_tokens_per_gpu {tokens}" for tokens in (4000, 8000))
    assert lines(OPENRLHF, before, f"{after} --colocate_all_models") == [
        "--use_dynamic_batch  (was False)",
        "--rollout_max_tokens_per_gpu 8000  (was 4000)",
        "--colocate_all_models  (was False)",
        "--train_max_tokens_per_gpu 4000  (was 16192)",
    ]
