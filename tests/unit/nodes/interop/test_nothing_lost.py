"""What a flow or a run says is written, read, or named: nothing that changes numbers is dropped in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowgraph import Loss, flow
from flowgraph.errors import FlowError, UsageError
from flowgraph.flows.settings import resolve_settings
from flowgraph.passes import named
from nodes import (
    Critic,
    Judge,
    Policy,
    ProcessRewardModel,
    Prompts,
    clip_cov_loss,
    clipped,
    critic_values,
    cross_entropy,
    dppo_loss,
    gae,
    generate,
    gpg_advantages,
    group_normalize,
    high_covariance,
    judged,
    kl_cov_loss,
    logprobs,
    process_rewards,
    remote_judge,
    remote_reward,
    score,
    top_covariance,
    update,
    value_loss,
)
from nodes.interop import NEEDLESS, UNREAD, export, read_command
from nodes.interop.algorithm import REPORTS, read_algorithm
from nodes.interop.keys import keys
from nodes.interop.unwritten_settings import RESOURCE_SETTINGS
from tests.looped import looped

SYSTEMS = (("verl", "0.9.1"), ("verl", "0.7.1"), ("openrlhf", "0.11.2"), ("openrlhf", "0.9.10"), ("nemo-rl", "0.7.0"))
FLOWS = (
    *("cispo", "dapo", "decoupled_ppo", "dr_grpo", "egpo", "gdpo", "gmpo", "gpg", "grpo", "gspo", "opo", "ppo"),
    *("reinforce_pp", "reinforce_pp_baseline", "remax", "rloo", "sapo"),
)
RUN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=256 "
    "data.max_response_length=512 actor_rollout_ref.model.path=org/student trainer.n_gpus_per_node=8"
)


def text_of(exported: Any) -> str:
    return "\n".join([*exported.files.values(), *exported.notes])


@looped("name", FLOWS)
def test_every_value_that_changes_numbers_is_written_or_named(name: str, graph: Any, plan: Any) -> None:
    """Each setting that has no default, or another value, is changed: what is written changes too, or names it."""
    described = graph(name)
    made, algorithm = plan(described, "hybrid"), read_algorithm(described)
    assert algorithm is not None
    tried = dict[str, object]()
    for node in described.all_nodes:
        for setting, field in node.op.settings.model_fields.items():
            value = getattr(node.settings, setting)
            if setting not in RESOURCE_SETTINGS and node.op.name not in REPORTS and type(value) in (int, float):
                changed = value + 1 if isinstance(value, int) else value / 2 + 0.02
                if field.is_required() or value != field.default:
                    tried[f"{node.name}.{setting}"] = changed
    assert tried
    before = {each: text_of(export(made, *each, graph=described)) for each in SYSTEMS}
    for each in algorithm.scores:
        assert len(algorithm.scores) == 1 or all(each.node in text for text in before.values()), "each of several"
    for place, (setting, value) in enumerate(tried.items()):
        other, _ = resolve_settings(described, (), {setting: value})
        system = SYSTEMS[(place + len(name)) % len(SYSTEMS)]  # in turn: one export tries all settings itself
        alike = setting.startswith(("policy.generate#2.", "critic.update."))  # told by the policy's own
        assert text_of(export(made, *system, graph=other)) != before[system] or alike, f"{system} loses {setting}"


def test_gdpo_is_told_its_rewards_and_their_weights(graph: Any, plan: Any, argv: Any) -> None:
    described = graph("gdpo", {"scale.factor": 0.6})
    for version in ("0.9.1", "0.7.1"):
        exported = export(plan(described, "hybrid"), "verl", version, graph=described)
        words = argv(exported.files["run.sh"])
        assert "+algorithm.gdpo_reward_keys=[data_reward,partial_reward]" in words
        assert "+algorithm.gdpo_reward_weights=[0.6,0.3]" in words
        assert "reward.reward_manager.name=gdpo" in words
        assert "reward.custom_reward_function.path=given" in words
        assert any("`data_reward` and `partial_reward`" in note for note in exported.notes)
        found = read_command(exported.files["run.sh"])
        assert {"scale.factor=0.6", "scale#2.factor=0.3"} <= set(found.settings), "and read back"


def flow_of(loss_of: Any, advantages_of: Any = None) -> Any:
    @flow
    def own(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=4)
        scored = score(rollout, by="exact")
        advantages = (advantages_of or group_normalize_of)(rollout, scored)

        def loss(pi: Policy) -> Loss:
            return loss_of(logprobs(pi, rollout), rollout, advantages)

        return update(policy, loss)

    return named(own.graph())


def group_normalize_of(rollout: Any, scored: Any) -> Any:
    return group_normalize(scored, rollout.group)


def clip(new: Any, rollout: Any, advantages: Any) -> Any:
    return clipped(new, advantages, rollout.mask, old=rollout.logprobs)


def test_of_several_scores_each_is_named_with_its_weight_and_a_reward_function_is_asked_for(plan: Any) -> None:
    def both(rollout: Any, scored: Any) -> Any:
        return gpg_advantages(0.7 * scored + 0.3 * score(rollout, by="partial"), rollout.group)

    described = flow_of(clip, both)
    for system, version in SYSTEMS:
        exported = export(plan(described, "hybrid"), system, version, graph=described)
        said = "0.7 × `score` by the rule `exact`, 0.3 × `score#2` by the rule `partial`"
        assert any(said in note for note in exported.notes)
        assert system == "nemo-rl" or "REWARD_FILE" in exported.files["run.sh"]


def test_scores_of_servers_and_judges_are_named_and_a_reward_function_is_asked_for(plan: Any) -> None:
    at: Any = {"url": "http://localhost:8000", "model": "org/one"}
    asked = {
        "remote_judge": lambda rollout, _: group_normalize(remote_judge(rollout, **at), rollout.group),
        "remote_reward": lambda rollout, _: group_normalize(remote_reward(rollout, **at), rollout.group),
    }
    for name, advantages_of in asked.items():
        described = flow_of(clip, advantages_of)
        for system, version in SYSTEMS:
            exported = export(plan(described, "hybrid"), system, version, graph=described)
            said = f"no key names a server that scores: the reward function has to ask that of `{name}`"
            assert said in exported.notes
            assert any(f"`{name}.url=http://localhost:8000`, `{name}.model=org/one`" in note for note in exported.notes)
            assert not any("is ours" in note for note in exported.notes), "it is no rule"
            assert system == "nemo-rl" or "REWARD_FILE" in exported.files["run.sh"]

    def both(rollout: Any, scored: Any) -> Any:
        return group_normalize(0.7 * scored + 0.3 * remote_reward(rollout, **at), rollout.group)

    described = flow_of(clip, both)
    notes = export(plan(described, "hybrid"), "verl", graph=described).notes
    assert any("0.7 × `score` by the rule `exact`, 0.3 × `remote_reward` by a server" in note for note in notes)

    @flow
    def of_a_judge(prompts: Prompts, policy: Policy, judge: Judge) -> Policy:
        rollout = generate(policy, prompts, n=4)
        advantages = group_normalize(judged(judge, rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

        return update(policy, loss)

    described = named(of_a_judge.graph())
    exported = export(plan(described, "hybrid"), "verl", graph=described)
    assert any("no key names a model that judges: serve `judge`" in note for note in exported.notes)
    assert "REWARD_FILE" in exported.files["run.sh"]


def test_rewards_of_tokens_are_not_written_as_those_of_responses(plan: Any) -> None:
    @flow
    def by_steps(prompts: Prompts, policy: Policy, critic: Critic, steps: ProcessRewardModel) -> tuple[Policy, Critic]:
        rollout = generate(policy, prompts)
        rewards, old = process_rewards(steps, rollout, step="\n\n"), critic_values(critic, rollout)
        advantages, returns = gae(rewards, old, rollout.mask)

        def policy_loss(pi: Policy) -> Loss:
            return clip(logprobs(pi, rollout), rollout, advantages)

        def critic_loss(v: Critic) -> Loss:
            return value_loss(critic_values(v, rollout), returns, rollout.mask, old=old)

        return update(policy, policy_loss), update(critic, critic_loss)

    described = named(by_steps.graph())
    for system, version in SYSTEMS:
        made = plan(described, "hybrid", models={"steps": "org/steps"})
        exported = export(made, system, version, graph=described)
        assert "org/steps" not in "".join(exported.files.values()), "it would score whole responses"
        assert any("a model that rewards tokens" in note and "`steps` is left out" in note for note in exported.notes)
        assert any(r"`steps.process_rewards.step='\n\n'`" in note for note in exported.notes), "on one line"
        assert system == "nemo-rl" or "REWARD_FILE" in exported.files["run.sh"]


def test_dapo_keeps_groups_by_scores_without_the_penalty_for_length(graph: Any, plan: Any, argv: Any) -> None:
    described = graph("dapo")
    words = argv(export(plan(described, "hybrid"), "verl", graph=described).files["run.sh"])
    assert "algorithm.filter_groups.metric=acc" in words and "reward.reward_manager.name=dapo" in words


def test_bounds_of_dppo_and_choices_by_covariance_are_written(plan: Any, argv: Any) -> None:
    def dppo(new: Any, rollout: Any, advantages: Any) -> Any:
        return dppo_loss(new, advantages, rollout.mask, old=rollout.logprobs, divergence="kl", most=7.0)

    def clip_cov(new: Any, rollout: Any, advantages: Any) -> Any:
        old, mask = rollout.logprobs, rollout.mask
        chosen = high_covariance(old, advantages, mask, ids=rollout, fraction=0.01, low=0.5, high=9.0)
        return clip_cov_loss(new, advantages, mask, old=old, chosen=chosen, eps=1.0)

    def kl_cov(new: Any, rollout: Any, advantages: Any) -> Any:
        old, mask = rollout.logprobs, rollout.mask
        chosen = top_covariance(old, advantages, mask, fraction=0.02)
        return kl_cov_loss(new, advantages, mask, old=old, chosen=chosen)

    actor = "actor_rollout_ref.actor."
    wanted = {
        dppo: ("policy_loss.loss_mode=dppo_kl", "clip_ratio_c=7.0"),
        kl_cov: ("policy_loss.kl_cov_ratio=0.02", "policy_loss.ppo_kl_coef=1.0"),
    }
    for loss, told in wanted.items():
        words = argv_of(argv, plan, flow_of(loss))
        assert {f"{actor}{each}" for each in told} <= set(words)
    with pytest.raises(FlowError, match="high_covariance"):
        flow_of(clip_cov)  # it reads the whole batch, so it is chosen outside of the loss


def argv_of(argv: Any, plan: Any, described: Any) -> list[str]:
    found: list[str] = argv(export(plan(described, "hybrid"), "verl", graph=described).files["run.sh"])
    return found


def test_terms_that_a_system_aggregates_as_the_surrogate_are_named(graph: Any, plan: Any) -> None:
    described = graph("gspo")
    notes = export(plan(described, "hybrid"), "verl", graph=described).notes
    said = "`policy.update.entropy_bonus` is aggregated as token-mean; verl aggregates all terms alike: sequence-mean"
    assert said in notes


def test_no_clip_of_gradients_is_not_a_clip_at_nothing(graph: Any, plan: Any, argv: Any) -> None:
    described = graph("grpo", {"policy.update.max_grad_norm": 0.0})
    exported = export(plan(described, "hybrid"), "verl", graph=described)
    assert "actor_rollout_ref.actor.optim.clip_grad=1000000000.0" in argv(exported.files["run.sh"])
    assert any("does not clip gradients" in note for note in exported.notes)


def test_a_flow_that_learns_by_heart_is_refused_with_its_node(graph: Any, plan: Any) -> None:
    def heart(new: Any, rollout: Any, _: Any) -> Any:
        return cross_entropy(new, rollout.mask)

    described = flow_of(heart)
    for system, version in SYSTEMS:
        with pytest.raises(UsageError, match=r"`?policy.update.cross_entropy`? learns given responses"):
            export(plan(described, "hybrid"), system, version, graph=described)
    beside = flow_of(lambda new, rollout, gain: heart(new, rollout, gain) + clip(new, rollout, gain))
    notes = export(plan(beside, "hybrid"), "verl", graph=beside).notes
    assert any("left out: `policy.update.cross_entropy`" in note for note in notes)


# ------------------------------------------------------------------------------------------------------- imports


def test_every_key_with_another_value_is_read_or_named() -> None:
    """All keys of a version at once, each with a value that it does not have by default."""
    known = keys("verl", "0.9.1")
    given = {"trainer.n_gpus_per_node", "actor_rollout_ref.model.path", "data.train_batch_size"}
    plain = [key for key in known.defaults if f"{key}=" not in RUN and key not in given]
    free = [
        key for key in plain if isinstance(known.defaults[key], bool | str) and "${" not in str(known.defaults[key])
    ]
    told = 0
    for key in free:
        default = known.defaults[key]
        value = (not default) if isinstance(default, bool) else "another"
        try:
            found = read_command(f"{RUN} {key}={value}")
        except UsageError:
            continue  # refused: nothing is lost
        why = dict(found.ignored).get(key)
        told += why == UNREAD
        assert why in (None, UNREAD) or known.irrelevant(key), f"{key}: {why}"
        assert why != NEEDLESS or known.irrelevant(key)
    assert told > 50
    quiet = read_command(f"{RUN} actor_rollout_ref.rollout.top_p=1 actor_rollout_ref.rollout.top_k=-1")
    assert not [key for key, why in quiet.ignored if why == UNREAD], "what is told its default changes nothing"


def test_a_run_that_learns_from_a_teacher_is_refused_with_the_teacher() -> None:
    teacher = "distillation.teacher_models.teacher_model.model_path=org/teacher-32b"
    with pytest.raises(UsageError, match="learns from a teacher, `org/teacher-32b`"):
        read_command(f"{RUN} distillation.enabled=True distillation.nnodes=1 {teacher}")
    read_command(f"{RUN} distillation.enabled=False {teacher}")


def test_what_a_run_computes_otherwise_than_its_flow_is_said() -> None:
    actor = "actor_rollout_ref.actor."
    gspo = read_command(f"{RUN} {actor}policy_loss.loss_mode=gspo")
    assert "the run aggregates terms by `token-mean`; the flow `gspo` averages over responses" in gspo.notes
    assert "policy.update.gspo_loss.eps_high=0.2" in gspo.settings, "not the flow's own 4e-4"
    dapo = read_command(f"{RUN} algorithm.filter_groups.enable=True {actor}policy_loss.loss_mode=gspo")
    assert "policy.update.clipped.eps_high=0.2" in dapo.settings, "not the flow's own 0.28"
    assert any("replaces groups with verl's loss `gspo`" in note for note in dapo.notes)
    assert any("keeps groups by `reward`" in note for note in dapo.notes)
    ratio = read_command(f"{RUN} {actor}clip_ratio=0.3")
    assert any("clip_ratio=0.3 has no effect in verl" in note for note in ratio.notes)
    ppo = read_command(f"{RUN} algorithm.adv_estimator=gae critic.cliprange_value=1000000 critic.model.path=org/critic")
    assert "critic.update.value_loss.clip=null" in ppo.settings


def test_settings_of_verls_own_examples_are_in_range(graph: Any) -> None:
    for loss, name, told in (("cispo", "cispo_loss", (10, 0.2)), ("vanilla", "clipped", (1, 1))):
        low, high = told
        actor = "actor_rollout_ref.actor."
        run = f"{RUN} {actor}policy_loss.loss_mode={loss} {actor}clip_ratio_low={low} {actor}clip_ratio_high={high}"
        found = read_command(run)
        values = {name: value for name, _, value in (each.partition("=") for each in found.settings)}
        graph(found.flow, {key: json.loads(value) for key, value in values.items() if name in key and "agg" not in key})
        assert values[f"policy.update.{name}.eps"] == str(low)
