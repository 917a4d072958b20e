"""What a plan says, in the words of each system; and what the system does instead, said."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flowgraph.cluster.plan import Layout, PhasePeak, Pool, PoolForecast, RoleSettings, StepForecast, TimedTask
from flowgraph.errors import PlanError, UsageError
from nodes.interop import LongestLengths, export, read_command
from nodes.interop.export_spec import ExportDevices
from tests.looped import looped

CASES = [
    ("ppo", "hybrid:verl", 0),
    ("ppo", "split:openrlhf", 0),
    ("grpo", "colocated", 0),
    ("gpg", "standalone", 0),
    ("decoupled_ppo", "split:openrlhf", 2),
    ("dapo", "hybrid:verl", 0),
]


def told(argv: Any, exported: Any) -> dict[str, str]:
    """Return verl's overrides by key."""
    return dict(each.partition("=")[::2] for each in argv(exported.files["run.sh"]) if "=" in each)


def flags(argv: Any, exported: Any) -> dict[str, list[str]]:
    """Return OpenRLHF's flags with their values."""
    words = argv(exported.files["run.sh"])
    words = words[words.index("openrlhf.cli.train_ppo_ray") + 1 :]
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    return {words[a][2:]: words[a + 1 : b] for a, b in zip(starts, [*starts[1:], len(words)], strict=True)}


@looped("system, version", [("verl", "0.7.1"), ("verl", "0.9.1"), ("openrlhf", "0.9.10")])
@looped("flow, placement, lag", CASES)
def test_a_command_is_as_it_was(
    system: str, version: str, flow: str, placement: str, lag: int, graph: Any, plan: Any, golden: Any
) -> None:
    described = graph(flow)
    exported = export(plan(described, placement, lag=lag), system, version, graph=described)
    name = placement.replace(":", "-")
    golden(exported.files["run.sh"], f"interop/{system}-{version}/{flow}-{name}{'-late' if lag else ''}.sh")


@looped("flow, placement, lag", CASES)
def test_a_configuration_is_as_it_was(flow: str, placement: str, lag: int, graph: Any, plan: Any, golden: Any) -> None:
    described = graph(flow)
    exported = export(plan(described, placement, lag=lag), "nemo-rl", graph=described)
    name = placement.replace(":", "-")
    assert set(exported.files) == {"nemo_rl.yaml", "run.sh"}
    golden(exported.files["nemo_rl.yaml"], f"interop/nemo-rl-0.7.0/{flow}-{name}{'-late' if lag else ''}.yaml")


def test_the_newest_version_is_written_unless_one_is_named(graph: Any, plan: Any) -> None:
    described = graph("gpg")
    made = plan(described, "hybrid")
    assert export(made, "OpenRLHF", graph=described).version == "0.11.2"
    assert export(made, "verl", "0.7.1", graph=described).version == "0.7.1"


def test_every_note_stands_at_the_head_of_the_file(graph: Any, plan: Any) -> None:
    described = graph("egpo")
    for system in ("verl", "openrlhf", "nemo-rl"):
        exported = export(plan(described, "hybrid"), system, graph=described)
        head = next(iter(exported.files.values()))
        assert any("`entropy_shaped`" in note for note in exported.notes)
        assert all(f"# - {note}\n" in head for note in exported.notes)


class TestVerl:
    def test_settings_of_the_flow_are_its_overrides(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("grpo", {"policy.generate.n": 5, "policy.update.scale.factor": 0.001})
        found = told(argv, export(plan(described, "hybrid"), "verl", graph=described))
        assert found["algorithm.adv_estimator"] == "grpo"
        assert found["actor_rollout_ref.rollout.n"] == "5"
        assert found["actor_rollout_ref.actor.use_kl_loss"] == "True"
        assert found["actor_rollout_ref.actor.kl_loss_coef"] == "0.001"
        assert found["actor_rollout_ref.actor.kl_loss_type"] == "low_var_kl"
        assert found["actor_rollout_ref.actor.optim.lr"] == "1.0e-06"
        assert found["data.train_batch_size"] == found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "512"
        assert found["data.max_prompt_length"] == "1024"
        assert found["data.max_response_length"] == "256"

    def test_pools_apart_are_its_asynchronous_trainer_which_waits_where_nothing_lags(
        self, graph: Any, plan: Any, argv: Any
    ) -> None:
        described = graph("decoupled_ppo")
        for lag in (0, 3):
            found = told(argv, export(plan(described, "split:openrlhf", lag=lag), "verl", graph=described))
            assert found["trainer.v1.trainer_mode"] == "separate_async"
            assert found["trainer.v1.separate_async.num_warmup_batches"] == str(lag)
            assert found["trainer.v1.sampler.max_off_policy_threshold"] == str(lag + 1)
            assert found["actor_rollout_ref.rollout.checkpoint_engine.backend"] == "nccl"
            # Source: verl 0.9.1 asserts it: train_batch_size == parameter_sync_step * ppo_mini_batch_size.
            steps = int(found["trainer.v1.separate_async.parameter_sync_step"])
            minibatch = int(found["actor_rollout_ref.actor.ppo_mini_batch_size"])
            assert steps * minibatch == int(found["data.train_batch_size"]) == 512

    def test_a_minibatch_that_does_not_divide_the_batch_is_said_where_pools_are_apart(
        self, graph: Any, plan: Any, argv: Any
    ) -> None:
        described = graph("gpg", {"policy.update.minibatch": 100})
        exported = export(plan(described, "split:openrlhf"), "verl", graph=described)
        assert told(argv, exported)["data.train_batch_size"] == "600"
        assert any("the batch is 600" in note for note in exported.notes)

    def test_a_critic_elsewhere_joins_the_trainers_pool(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo")
        exported = export(plan(described, "split:nemo-aligner"), "verl", graph=described)
        assert told(argv, exported)["trainer.nnodes"] == "2"
        said = "critic.train has the pool `p1`; verl's trainer has policy, critic and reference on one: "
        assert exported.notes[0] == f"{said}they share 16 devices"

    def test_a_reward_model_on_its_own_pool_has_one_in_verl(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo_reward_model", {}, "benchmarks.flows.ppo_reward_model")
        found = told(argv, export(plan(described, "hybrid:verl", devices=4), "verl", graph=described))
        assert found["reward.reward_model.enable_resource_pool"] == "True"
        assert found["reward.reward_model.n_gpus_per_node"] == "4"
        assert "reward.custom_reward_function.path" not in found
        shared = told(argv, export(plan(described, "colocated", devices=4), "verl", graph=described))
        assert shared["reward.reward_model.enable_resource_pool"] == "False"

    def test_megatron_is_told_its_degrees(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("grpo")

        def change(placed: Any) -> Any:
            if placed.role.endswith(".sample"):
                return placed
            layout = Layout(data=1, tensor=2, pipeline=2, sequence=2, sharding="optimizer")
            return placed.model_copy(update={"engine": "megatron", "layout": layout})

        exported = export(plan(described, "hybrid", change=change), "verl", graph=described)
        found = told(argv, exported)
        assert "--config-name=ppo_megatron_trainer" in exported.files["run.sh"]
        for where in ("actor", "ref"):
            for degree in ("tensor_model", "pipeline_model", "context"):
                assert found[f"actor_rollout_ref.{where}.megatron.{degree}_parallel_size"] == "2"
        assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "8192"  # 16384 over 2 devices of a row

    def test_what_fsdp_cannot_do_is_said(self, graph: Any, plan: Any) -> None:
        described = graph("gpg")

        def change(placed: Any) -> Any:
            layout = Layout(data=8, sharding="optimizer")
            told = {"layout": layout, "running": RoleSettings(checkpointing="selective")}
            return placed.model_copy(update=told) if placed.role == "policy.train" else placed

        notes = export(plan(described, "hybrid", change=change), "verl", graph=described).notes
        assert any("shards its optimizer only" in note for note in notes)
        assert any("checkpoints some activations" in note for note in notes)

    def test_what_leaves_the_device_between_uses_is_offloaded_by_verl(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo")

        def change(placed: Any) -> Any:
            if placed.role.endswith(".sample"):
                return placed
            return placed.model_copy(update={"running": RoleSettings(precision="bfloat16", sleeps=True)})

        exported = export(plan(described, "hybrid", change=change), "verl", graph=described)
        found = told(argv, exported)
        for where in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
            assert found[f"{where}.param_offload"] == found[f"{where}.optimizer_offload"] == "True"
            assert f"{where}.offload_policy" not in found
        assert found["actor_rollout_ref.ref.fsdp_config.param_offload"] == "True"
        said = "`ref` leaves the device between uses; verl's FSDP loads its weights for each pass"
        assert said in exported.notes

    @pytest.mark.parametrize(
        ("activations", "sequence", "tokens"), [(0, "1", "16384"), (1, "1", "16384"), (40, "2", "8192")]
    )
    def test_tensor_ranks_become_data_ranks_where_these_fit_and_else_ranks_of_sequence(
        self, activations: int, sequence: str, tokens: str, graph: Any, plan: Any, argv: Any
    ) -> None:
        described = graph("gpg")
        memory = {"weights": 30 * 2**30, "activations": activations * 2**30}

        def change(placed: Any) -> Any:
            layout = Layout(data=4, tensor=2)
            told = {"layout": layout, "memory": memory}
            return placed.model_copy(update=told) if placed.role == "policy.train" else placed

        peak = PhasePeak(phase="update", role="policy.train", memory_bytes=sum(memory.values()))
        made = plan(described, "hybrid", change=change)
        told_of = made.model_copy(update={"forecast": (PoolForecast(pool="p0", process_bytes=0, peaks=(peak,)),)})
        exported = export(told_of if activations else made, "verl", graph=described)
        found = told(argv, exported)
        assert found["actor_rollout_ref.actor.ulysses_sequence_parallel_size"] == sequence
        assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == tokens
        assert found["actor_rollout_ref.actor.fsdp_config.fsdp_size"] == "-1"
        instead = Layout(data=8 // int(sequence), sequence=int(sequence), sharding="full")
        assert exported.notes[0].endswith(f"verl's FSDP has data and sequence ranks only: {instead}")

    @pytest.mark.parametrize("version", ["0.7.1", "0.9.1"])
    def test_whole_shards_of_megatron_are_its_fsdp_or_are_said_to_be_none(
        self, version: str, graph: Any, plan: Any, argv: Any
    ) -> None:
        described = graph("ppo")

        def change(placed: Any) -> Any:
            return placed.model_copy(update={"engine": "megatron"}) if placed.engine == "fsdp" else placed

        exported = export(plan(described, "hybrid", change=change), "verl", version, graph=described)
        found = told(argv, exported)
        owns = ("actor_rollout_ref.actor", "critic", "actor_rollout_ref.ref")
        whole = [found.get(f"{own}.megatron.use_megatron_fsdp") for own in owns]
        # Source: verl's engine wraps nothing that is `forward_only`, as the reference is: it is never sharded.
        assert whole == (["True", "True", None] if version == "0.9.1" else [None] * 3)
        said = "`ref` is fully sharded; verl's Megatron does not shard the reference: each of 8 data ranks holds"
        assert any(note.startswith(said) for note in exported.notes)
        assert sum("shards the optimizer only" in note for note in exported.notes) == (0 if version == "0.9.1" else 2)
        run = exported.system_run
        assert run is not None
        shardings = [run.layouts[role].sharding for role in ("policy.train", "critic.train", "ref.infer")]
        assert shardings == (["full", "full", "optimizer"] if version == "0.9.1" else ["optimizer"] * 3)

    def test_megatron_cuts_all_models_of_the_trainer_as_the_policy(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo")
        layouts = {
            "policy.train": Layout(data=2, tensor=2, pipeline=2, sharding="optimizer"),
            "critic.train": Layout(data=8, sharding="optimizer"),
            "ref.infer": Layout(data=8, sharding="full"),
        }

        def change(placed: Any) -> Any:
            told_of = {"engine": "megatron", "layout": layouts.get(placed.role)}
            return placed.model_copy(update=told_of) if placed.role in layouts else placed

        exported = export(plan(described, "hybrid", change=change), "verl", graph=described)
        found = told(argv, exported)
        # Source: verl's engine: `mpu` is set up once in a process, by the first model; all others have its groups.
        for own in ("actor_rollout_ref.actor", "critic", "actor_rollout_ref.ref"):
            degrees = [found[f"{own}.megatron.{name}_model_parallel_size"] for name in ("tensor", "pipeline")]
            assert degrees == ["2", "2"]
        assert sum("gives all models of the trainer the policy's" in note for note in exported.notes) == 2

    def test_experts_where_it_draws_lie_on_all_devices_of_an_engine(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("gpg")

        def change(placed: Any) -> Any:
            layout = Layout(data=4, tensor=2, expert=4)
            return placed.model_copy(update={"layout": layout}) if placed.role == "policy.sample" else placed

        found = told(argv, export(plan(described, "hybrid", change=change), "verl", graph=described))
        # Source: verl asserts it in RolloutConfig: experts over all of tensor_model_parallel_size * data_parallel_size.
        sizes = [
            found[f"actor_rollout_ref.rollout.{name}_parallel_size"] for name in ("data", "tensor_model", "expert")
        ]
        assert sizes == ["4", "2", "8"]

    def test_a_reference_that_a_plan_does_without_is_not_run(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo", {"kl_penalized.weight": 0.0})
        made = plan(described, "hybrid", without=("ref",))
        without = made.model_copy(update={"placed": tuple(each for each in made.placed if each.role != "ref.infer")})
        exported = export(without, "verl", graph=described)
        found = told(argv, exported)
        assert (found["algorithm.use_kl_in_reward"], found["actor_rollout_ref.actor.use_kl_loss"]) == ("False", "False")
        assert not [key for key in found if key.startswith("actor_rollout_ref.ref.")]
        assert not [note for note in exported.notes if "`ref`" in note]
        assert flags(argv, export(without, "openrlhf", graph=described))["algo.kl.init_coef"] == ["0"]

    def test_machines_of_different_sizes_give_the_least(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("gpg")
        made = plan(described, "split:openrlhf", devices=8)
        uneven = Pool(name="p0", devices=(*(("m0", i) for i in range(8)), *(("m1", i) for i in range(4))))
        other = Pool(name="p1", devices=tuple(("m1", i) for i in range(4, 8)))
        exported = export(made.model_copy(update={"pools": (uneven, other)}), "verl", graph=described)
        found = told(argv, exported)
        assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == ("2", "4")
        assert any("has 8, 4 devices on its machines" in note for note in exported.notes)

    def test_adapters_are_told_by_rank_and_alpha(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("gpg")
        found = told(argv, export(plan(described, "hybrid", models={"policy": "a/b+lora=8"}), "verl", graph=described))
        assert found["actor_rollout_ref.model.path"] == "a/b"
        assert (found["actor_rollout_ref.model.lora_rank"], found["actor_rollout_ref.model.lora_alpha"]) == ("8", "16")

    def test_a_response_is_as_long_as_the_forecast_has_it(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("gpg")
        made = plan(described, "hybrid", response_tokens="mean=4k,max=16k")
        exported = export(made, "verl", graph=described)
        assert told(argv, exported)["data.max_response_length"] == "16000"
        said = "the flow cuts responses at 256 tokens; the forecast, and so this file, at 16000"
        assert said in exported.notes
        longer = export(made, "verl", graph=described, longest=LongestLengths(2000, 20000))
        lengths = [told(argv, longer)[f"data.max_{what}_length"] for what in ("prompt", "response")]
        assert lengths == ["2000", "20000"]
        assert flags(argv, export(made, "openrlhf", graph=described))["rollout.max_new_tokens"] == ["16000"]

    def test_a_pass_that_a_forecast_has_and_verl_has_not_is_said(self, graph: Any, plan: Any) -> None:
        described = graph("grpo")
        measured = TimedTask(name="policy.logprobs", kind="logprob", role="policy.train", parts={"matmul": 1.0})
        made = plan(described, "hybrid").model_copy(
            update={"step": StepForecast(tasks=(measured,), waits=(), period_s=1.0)}
        )
        (said,) = [note for note in export(made, "verl", graph=described).notes if "forward pass" in note]
        assert said.startswith("verl clips around the sampler's log-probs without recomputing them")
        for system in ("openrlhf", "nemo-rl"):
            assert any(note.endswith("recomputes them") for note in export(made, system, graph=described).notes)
            without = export(plan(described, "hybrid"), system, graph=described).notes
            assert any(note.endswith("recomputes them: one more forward pass") for note in without)


class TestOpenRLHF:
    def test_models_that_share_all_devices_share_them_with_vllm(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo")
        found = flags(argv, export(plan(described, "colocated"), "openrlhf", graph=described))
        assert found["train.colocate_all"] == found["vllm.enable_sleep"] == found["ds.enable_sleep"] == []
        assert found["vllm.num_engines"] == ["4"]
        assert found["vllm.tensor_parallel_size"] == ["2"]
        assert found["train.batch_size"] == ["128"]  # 8 prompts of 16 responses
        assert found["ds.zero_stage"] == ["3"]

    def test_three_pools_are_its_own_placement(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("ppo_reward_model", {"policy.generate.n": 2}, "benchmarks.flows.ppo_reward_model")
        exported = export(plan(described, "split:openrlhf"), "openrlhf", graph=described)
        found = flags(argv, exported)
        assert found["train.colocate_actor_ref"] == found["train.colocate_critic_reward"] == []
        assert "train.colocate_all" not in found
        assert not any("pool" in note for note in exported.notes)

    def test_a_lag_is_its_queue(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("decoupled_ppo")
        found = flags(argv, export(plan(described, "split:openrlhf", lag=3), "openrlhf", graph=described))
        assert found["train.async_enable"] == []
        assert found["train.async_queue_size"] == ["3"]
        together = export(plan(described, "colocated", lag=3), "openrlhf", graph=described)
        assert "train.async_enable" not in flags(argv, together)
        assert any("so there is none" in note for note in together.notes)

    def test_budgets_are_shared_by_the_devices_of_a_row_and_the_reference_has_its_own(
        self, graph: Any, plan: Any, argv: Any
    ) -> None:
        described = graph("grpo")

        def change(placed: Any) -> Any:
            if placed.role.endswith(".sample"):
                return placed
            budget = 32768 if placed.role == "ref.infer" else 8192
            running = placed.running.model_copy(update={"micro_batch_tokens": budget})
            layout = Layout(data=4, tensor=2, sharding="full")
            return placed.model_copy(update={"running": running, "layout": layout})

        exported = export(plan(described, "hybrid", change=change), "openrlhf", graph=described)
        found = flags(argv, exported)
        # Source: OpenRLHF multiplies a device's budget by the degrees of tensor and ring parallelism.
        assert (found["train.max_tokens_per_gpu"], found["rollout.max_tokens_per_gpu"]) == (["4096"], ["16384"])

    def test_what_leaves_the_device_between_uses_sleeps(self, graph: Any, plan: Any, argv: Any) -> None:
        described = graph("gpg")

        def change(placed: Any) -> Any:
            running = placed.running.model_copy(update={"offload": (), "sleeps": True})
            return placed.model_copy(update={"running": running})

        together = export(plan(described, "hybrid", change=change), "openrlhf", graph=described)
        assert "ds.enable_sleep" in flags(argv, together)
        apart = export(plan(described, "split:openrlhf", change=change), "openrlhf", graph=described)
        assert "ds.enable_sleep" not in flags(argv, apart)
        assert any("DeepSpeed sleeps only if all models share devices" in note for note in apart.notes)

    def test_sampling_with_another_engine_is_said(self, graph: Any, plan: Any) -> None:
        described = graph("gpg")

        def change(placed: Any) -> Any:
            return placed.model_copy(update={"engine": "sglang"}) if placed.engine == "vllm" else placed

        for system in ("openrlhf", "nemo-rl"):
            notes = export(plan(described, "hybrid", change=change), system, graph=described).notes
            assert any("sglang" in note and "vllm" in note for note in notes)

    def test_estimators_that_it_lacks_are_said(self, graph: Any, plan: Any, argv: Any) -> None:
        for flow, estimator in (("gpg", "dr_grpo"), ("opo", "group_norm"), ("rloo", "rloo"), ("grpo", "group_norm")):
            described = graph(flow)
            exported = export(plan(described, "hybrid"), "openrlhf", graph=described)
            assert flags(argv, exported)["algo.advantage.estimator"] == [estimator]
            assert any("advantages" in note for note in exported.notes) == (flow in ("gpg", "opo"))


class TestNeMoRL:
    def test_generation_of_its_own_has_whole_machines(self, graph: Any, plan: Any) -> None:
        described = graph("decoupled_ppo")
        exported = export(plan(described, "split:openrlhf", lag=2), "nemo-rl", graph=described)
        told_of = yaml.safe_load(exported.files["nemo_rl.yaml"])
        assert told_of["cluster"] == {"gpus_per_node": 8, "num_nodes": 2}
        colocated = told_of["policy"]["generation"]["colocated"]
        assert colocated == {"enabled": False, "resources": {"gpus_per_node": 8, "num_nodes": 1}}
        assert told_of["grpo"]["async_grpo"] == {"enabled": True, "max_trajectory_age_steps": 2}
        assert told_of["loss_fn"]["use_importance_sampling_correction"] is True
        assert told_of["policy"]["generation"]["vllm_cfg"]["async_engine"] is True

    def test_one_machine_is_divided(self, graph: Any, plan: Any) -> None:
        described = graph("gpg")
        made = plan(described, "split:openrlhf", devices=4)
        one = made.pools[1].model_copy(update={"devices": tuple(("m0", place) for place in range(4, 8))})
        told_of = yaml.safe_load(
            export(made.model_copy(update={"pools": (made.pools[0], one)}), "nemo-rl", graph=described).files[
                "nemo_rl.yaml"
            ]
        )
        assert told_of["cluster"] == {"gpus_per_node": 8, "num_nodes": 1}
        assert told_of["policy"]["generation"]["colocated"]["resources"] == {"gpus_per_node": 4, "num_nodes": None}

    def test_ppo_generates_on_the_policys_devices(self, graph: Any, plan: Any) -> None:
        described = graph("ppo")
        exported = export(plan(described, "split:openrlhf"), "nemo-rl", graph=described)
        told_of = yaml.safe_load(exported.files["nemo_rl.yaml"])
        assert told_of["defaults"] == "ppo_math_1B.yaml"
        assert told_of["policy"]["generation"]["colocated"]["enabled"] is True
        assert any("NeMo RL's PPO generates on the policy's devices" in note for note in exported.notes)
        assert "run_ppo.py" in exported.files["run.sh"]
        run = exported.system_run
        assert run is not None
        assert run.running["policy.sample"].sleeps  # which it does not where it has devices of its own

    def test_its_megatron_shards_the_optimizer_only_and_cuts_experts_as_the_plan_does(
        self, graph: Any, plan: Any
    ) -> None:
        described = graph("grpo")

        def change(placed: Any) -> Any:
            layout = Layout(data=4, tensor=2, expert=4, sharding="full")
            told_of = {"engine": "megatron", "layout": layout}
            return placed.model_copy(update=told_of) if placed.engine == "fsdp" else placed

        exported = export(plan(described, "hybrid", change=change), "nemo-rl", graph=described)
        megatron = yaml.safe_load(exported.files["nemo_rl.yaml"])["policy"]["megatron_cfg"]
        assert (megatron["expert_model_parallel_size"], megatron["expert_tensor_parallel_size"]) == (4, 2)
        said = "policy.train is fully sharded; NeMo RL's Megatron shards the optimizer only: each of 4 data ranks holds"
        assert any(note.startswith(said) for note in exported.notes)
        run = exported.system_run
        assert run is not None
        told_of = Layout(data=4, tensor=2, expert=4, sharding="optimizer")
        assert (run.layouts["policy.train"], run.layouts["ref.infer"]) == (told_of, told_of)
        assert run.running["policy.train"].sleeps
        assert run.running["ref.infer"].sleeps


class TestAsRun:
    def test_what_is_written_is_read_back_with_its_pools_and_the_flows_own_names(self, graph: Any, plan: Any) -> None:
        described = graph("ppo_reward_model", {"policy.generate.n": 2}, "benchmarks.flows.ppo_reward_model")
        made = plan(described, "standalone:each-role")
        roles = {each.role for each in made.placed}
        for system in ("verl", "openrlhf", "nemo-rl"):
            run = export(made, system, graph=described).system_run
            assert run is not None
            assert set(run.layouts) == set(run.running) == roles
            assert {role for part in run.parts for role in part.roles} == roles
        together = {"policy.train", "critic.train", "ref.infer"}
        verl = export(made, "verl", graph=described).system_run
        assert verl is not None
        assert (set(verl.parts[0].roles), verl.parts[0].devices) == (together, 24)
        assert verl.layouts["policy.train"].devices == 24

    def test_settings_of_sampling_are_written_and_read_back_or_named(self, graph: Any, plan: Any) -> None:
        sets: dict[str, Any] = {"top_k": 50, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
        sets |= {"stop": ("\nUser:", 13)}
        written = {
            "verl": ("rollout.top_k=50", "rollout.top_p=0.9", "rollout.ignore_eos=True"),
            "openrlhf": ("--rollout.top_p 0.9",),
            "nemo-rl": ("top_k: 50", "top_p: 0.9", "User:", "- 13"),
        }
        lost = {
            "verl": ("min_p=0.1", "repetition_penalty=1.1", "stop="),
            "openrlhf": ("top_k=50", "min_p=0.1", "repetition_penalty=1.1", "stop=", "ignore_eos=True"),
            "nemo-rl": ("min_p=0.1", "repetition_penalty=1.1", "ignore_eos=True"),
        }
        described = graph("gpg", {f"policy.generate.{name}": value for name, value in sets.items()})
        for system in written:
            exported = export(plan(described, "hybrid"), system, graph=described)
            text = "\n".join(exported.files.values())
            assert [words for words in written[system] if words not in text] == []
            notes = "\n".join(exported.notes)
            assert [words for words in lost[system] if f"policy.generate.{words}" not in notes] == []
            if system != "nemo-rl":
                assert "those of all tokens" in notes
                back = read_command(exported.files["run.sh"])
                assert "policy.generate.top_p=0.9" in back.settings
                assert any(note.startswith("the run trains log-probs of all tokens") for note in back.notes)

    def test_what_cannot_be_run_is_said_at_the_head_of_the_file(self, graph: Any, plan: Any) -> None:
        described = graph("gpg")

        def change(placed: Any) -> Any:
            layout = Layout(data=2, tensor=3)
            return placed.model_copy(update={"layout": layout}) if placed.role == "policy.sample" else placed

        exported = export(plan(described, "hybrid", change=change), "verl", graph=described)
        said = "verl 0.9.1 cannot run what is written: "
        assert exported.system_run is None
        assert exported.notes[-1].startswith(said)
        assert f"# - {said}" in exported.files["run.sh"]


def test_a_flow_that_draws_nothing_is_refused(graph: Any, plan: Any) -> None:
    described = graph("sft")
    with pytest.raises(UsageError) as caught:
        export(plan(described, "colocated"), "verl", graph=described)
    assert str(caught.value).startswith("sft: sft trains no policy on responses that it generates")


def test_a_plan_that_does_not_say_what_it_was_made_for_is_refused(graph: Any, plan: Any) -> None:
    described = graph("gpg")
    made = plan(described, "hybrid").model_copy(update={"assumed": None})
    with pytest.raises(PlanError) as caught:
        export(made, "verl", graph=described)
    assert "does not state its models and batch" in str(caught.value)


HOSTILE = [
    "$(touch owned)",
    "`touch owned`",
    "a'; touch owned; '",
    'a"; touch owned; "',
    "a\ntouch owned\n",
    "${oc.env:HOME}",
    "a, b=[c]",
    "--flag",
    "a: {b: c} # d",
    "\\",
    "null",
    "1e5",
]


@looped("name", HOSTILE)
@looped("system", ["verl", "openrlhf"])
def test_no_name_of_a_model_leaves_its_quotes(system: str, name: str, graph: Any, plan: Any, argv: Any) -> None:
    described = graph("gpg")
    exported = export(plan(described, "hybrid", models={"policy": name}), system, graph=described)
    words = argv(exported.files["run.sh"])  # the fixture looks whether a file was made
    if system == "openrlhf":
        assert words[words.index("--actor.model_name_or_path") + 1] == name
    else:
        assert sum(word.startswith("actor_rollout_ref.model.path=") for word in words) == 1


@looped("name", HOSTILE)
def test_no_name_of_a_model_is_more_than_a_text_in_yaml(name: str, graph: Any, plan: Any) -> None:
    described = graph("gpg")
    exported = export(plan(described, "hybrid", models={"policy": name}), "nemo-rl", graph=described)
    found = yaml.safe_load(exported.files["nemo_rl.yaml"])["policy"]["model_name"]
    assert found.replace("\\${", "${") == name


def test_no_pool_has_no_devices() -> None:
    assert (ExportDevices(()).nodes, ExportDevices(()).per_node, ExportDevices(()).devices) == (0, 0, 0)
