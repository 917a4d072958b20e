"""Notes on what a system cannot do of a plan: those that do not depend on the system."""

from __future__ import annotations

from collections.abc import Iterator

from nodes.interop.algorithm import SCORERS, aggregation_text
from nodes.interop.export_spec import ExportDevices, ExportSpec, RoleName, max_tokens
from nodes.scoring.remote import SERVED


def note_shared_limits(spec: ExportSpec) -> None:
    """Add notes to `spec` on what the system lacks or does differently, by the checks that all systems have in common.

    These concern nodes without a key, scores, lengths, truncated sampling, the precision of training, offloaded
    gradients, and the engine that samples.
    """
    for text in (*_of_scores(spec), *_of_lengths(spec)):
        spec.note(text)
    algorithm = spec.algorithm
    truncates = {"verl": algorithm.top_p < 1 or algorithm.top_k > 0, "openrlhf": algorithm.top_p < 1}
    if algorithm.temperature and truncates.get(spec.system, False):  # NeMo RL trains those of truncated ones too
        spec.note(f"the flow trains log-probs of the tokens that its truncation keeps; {spec.name} those of all tokens")
    trained: tuple[RoleName, ...] = ("policy", "critic")
    for placed in [spec.role(name) for name in trained if spec.is_placed(name)]:
        precision, offload = placed.running.precision, placed.running.offload
        if precision == "float32":
            spec.note(f"{placed.role} computes in float32; {spec.name} in bfloat16, with weights and states in float32")
        elif precision != "bfloat16":
            spec.note(f"{placed.role} computes in {precision}; {spec.name} in bfloat16")
        if "gradients" in offload and len(offload) < 3:
            spec.note(f"{placed.role} offloads its gradients; {spec.name} only together with weights and states")
    sample = spec.role("sampler")
    if sample.engine not in ("", "vllm", "sglang"):
        spec.note(f"{sample.role} runs on `{sample.engine}`; {spec.name} samples with vllm")


def note_aggregations(spec: ExportSpec, aggregation: str | float, how: str) -> None:
    """Add a note for each loss term, other than the surrogate, that flow and system aggregate differently.

    `aggregation` is that of the system; `how` introduces it in the note, as in "verl aggregates all terms alike".
    """
    for name, term in spec.algorithm.aggregations.items():
        if term != aggregation:
            spec.note(f"`{name}` is aggregated as {aggregation_text(term)}; {how}: {aggregation_text(aggregation)}")


def note_uneven(spec: ExportSpec, devices: ExportDevices, pool: str) -> None:
    """Add a note if machines have different numbers of `devices`; the system then uses the minimum on each machine.

    `pool` names the pool of these devices in the note.
    """
    if len(set(devices.counts)) > 1:
        counts = ", ".join(map(str, devices.counts))
        spec.note(
            f"{pool} has {counts} devices on its machines; {spec.name} needs the same number on each: "
            f"{devices.per_node} are used"
        )


def trainer_pools(spec: ExportSpec, trainer: str) -> set[str]:
    """Return the names of the pools of policy, critic and reference, without the sampler's unless it is the policy's.

    Adds a note for a critic, and for a reference, whose pool is not the policy's, since the system's trainer places all
    three together. `trainer` is the trainer's name in notes.
    """
    home, sampling = spec.role("policy").pool, spec.role("sampler").pool
    pools = {home}
    trained_or_read: tuple[RoleName, ...] = ("critic", "reference")
    for role in map(spec.role, trained_or_read):
        if role.pool not in ("", home):
            pools |= {role.pool} - {sampling}
            spec.note(
                f"{role.role} has the pool `{role.pool}`; {trainer} has policy, critic and reference on one: "
                f"they share {spec.devices(*pools).devices} devices"
            )
    return pools


def note_recomputed(spec: ExportSpec) -> None:
    """Add a note that the system recomputes the log-probs for clipping, if the flow uses the sampler's log-probs."""
    if spec.algorithm.surrogate.old == "sampler":
        extra = "" if spec.recomputes_logprobs else ": one more forward pass"
        spec.note(f"the flow clips around the sampler's log-probs; {spec.name} recomputes them{extra}")


def kl_estimator(spec: ExportSpec) -> str:
    """Return the KL estimator, k1, k2 or k3, for a system without a straight-through gradient; "" without a KL.

    An estimator with such a gradient, and "abs", become k2, with a note.
    """
    kl = spec.algorithm.kl
    if kl is None:
        return ""
    if kl.straight_through or kl.estimator == "abs":
        spec.note(
            f"{spec.name} estimates the KL by k1, k2 and k3 without a straight-through gradient: k2 for {kl.estimator}"
        )
        return "k2"
    return kl.estimator


def _of_scores(spec: ExportSpec) -> Iterator[str]:
    algorithm = spec.algorithm
    if algorithm.unsaid:
        yield f"nodes without a key are left out: {', '.join(f'`{name}`' for name in algorithm.unsaid)}"
    for param in spec.extra_params:
        yield f"no key names a model like `{param}`; it is left out"
    if "judge" in spec.parts:
        yield f"no key names a model that judges: serve `{spec.parts['judge']}`, and call it from the reward function"
    if "process" in spec.parts:
        yield (
            f"no key names a model that rewards tokens, and {spec.name} rewards a response at its last token: "
            f"`{spec.parts['process']}` is left out, and the reward function has to return one number for its rewards"
        )
    for node in (score.node for score in algorithm.scores if score.rule in SERVED):
        yield f"no key names a server that scores: the reward function has to ask that of `{node}`"
    scores = ", ".join(map(str, algorithm.scores))
    if algorithm.estimator == "gdpo" and spec.system == "verl":
        names = " and ".join(f"`{name}`" for name in algorithm.components)
        yield f"REWARD_FILE's compute_score returns a dict: `score`, and each reward of {scores}, as {names}"
    elif algorithm.estimator == "gdpo" and spec.system == "nemo-rl":
        yield f"NeMo RL's gdpo takes its rewards from the environment, without weights: the flow has {scores}"
    elif len(algorithm.scores) > 1:
        yield (
            f"{spec.name} has one reward, the flow {len(algorithm.scores)}: the reward function has to add up {scores}"
        )
    elif algorithm.own_reward and algorithm.rules[0] not in SCORERS:
        yield f"the rule `{algorithm.rules[0]}` is ours: REWARD_FILE must be a file with one in the system's form"


def _of_lengths(spec: ExportSpec) -> Iterator[str]:
    prompt, response = spec.assumed.prompt_tokens, spec.assumed.response_tokens
    if spec.longest is None and max_tokens(prompt) is None:
        yield f"`{prompt}` does not say how long a prompt may be: {spec.prompt_tokens} tokens are assumed"
    elif "=" in prompt and "max=" not in prompt:
        yield f"`{prompt}` has no maximum for a prompt: {spec.prompt_tokens} tokens are assumed"
    tokens = spec.algorithm.max_tokens
    if spec.longest is None and response and max_tokens(response) is None:
        yield f"`{response}` does not say how long a response may be: {tokens} tokens are assumed"
    if tokens != spec.flow_max_tokens:
        yield f"the flow cuts responses at {spec.flow_max_tokens} tokens; the forecast, and so this file, at {tokens}"
