"""Notes on what a system cannot do of a plan: those that do not depend on the system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nodes.interop.algorithm import KL, Algorithm, aggregation_text
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part, max_tokens
from nodes.interop.keys import System

NAMES: dict[System, str] = {"verl": "verl", "openrlhf": "OpenRLHF", "nemo-rl": "NeMo RL"}


@dataclass
class ExportNotes:
    """Notes for one system, in order, without repetition."""

    system: System
    texts: list[str] = field(default_factory=list[str])

    def add(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.texts:
            self.texts.append(text)


def note_shared_limits(spec: ExportSpec, notes: ExportNotes) -> None:
    """Note what none of the systems has: nodes without a key, models without a part, other precisions."""
    for text in (*_of_the_flow(spec, notes), *_of_lengths(spec), *_of_roles(spec, notes.system)):
        notes.add(text)


def note_aggregations(algorithm: Algorithm, aggregation: str | float, how: str, notes: ExportNotes) -> None:
    """Note which other terms than the surrogate the flow does not aggregate as the system does."""
    for name, own in algorithm.aggregations.items():
        if own != aggregation:
            notes.add(f"`{name}` is aggregated as {aggregation_text(own)}; {how}: {aggregation_text(aggregation)}")


def note_uneven(devices: ExportDevices, pool: str, notes: ExportNotes) -> None:
    """Note that a pool has different numbers of devices on its machines, so that the system uses fewer."""
    if len(set(devices.counts)) > 1:
        counts = ", ".join(map(str, devices.counts))
        notes.add(
            f"{pool} has {counts} devices on its machines; {NAMES[notes.system]} needs the same number on each: "
            f"{devices.per_node} are used"
        )


def recomputes(spec: ExportSpec, system: str) -> str:
    """Return the note on a system that does not clip around the sampler's log-probs."""
    extra = "" if spec.recomputes_logprobs else ": one more forward pass"
    return f"the flow clips around the sampler's log-probs; {system} recomputes them{extra}"


def kl_estimator(kl: KL | None, system: str, notes: ExportNotes) -> str:
    """Return the estimator of a system that has k1, k2 and k3 without a straight-through gradient; "" without a KL."""
    if kl is None:
        return ""
    if kl.straight_through or kl.estimator == "abs":
        notes.add(
            f"{system} estimates the KL by k1, k2 and k3 without a straight-through gradient: k2 for {kl.estimator}"
        )
        return "k2"
    return kl.estimator


def _of_the_flow(spec: ExportSpec, notes: ExportNotes) -> Iterator[str]:
    algorithm, system = spec.algorithm, NAMES[notes.system]
    if algorithm.unsaid:
        yield f"nodes without a key are left out: {', '.join(f'`{name}`' for name in algorithm.unsaid)}"
    for param in spec.others:
        yield f"no key names a model like `{param}`; it is left out"
    if spec.has("judge"):
        yield f"no key names a model that judges: serve `{spec.parts['judge']}`, and call it from the reward function"
    scores = ", ".join(map(str, algorithm.scores))
    if algorithm.estimator == "gdpo" and notes.system == "verl":
        names = " and ".join(f"`{name}`" for name in algorithm.components)
        yield f"REWARD_FILE's compute_score returns a dict: `score`, and each reward of {scores}, as {names}"
    elif algorithm.estimator == "gdpo" and notes.system == "nemo-rl":
        yield f"NeMo RL's gdpo takes its rewards from the environment, without weights: the flow has {scores}"
    elif len(algorithm.scores) > 1:
        yield f"{system} has one reward, the flow {len(algorithm.scores)}: the reward function has to add up {scores}"
    elif algorithm.own_reward:
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


def _of_roles(spec: ExportSpec, system: System) -> Iterator[str]:
    trained: tuple[Part, ...] = ("policy", "critic")
    for placed in (spec.placed(part, "train") for part in trained):
        if placed is None:
            continue
        precision, offload = placed.running.precision, placed.running.offload
        if precision == "float32":
            yield f"{placed.role} computes in float32; {NAMES[system]} in bfloat16, with weights and states in float32"
        elif precision != "bfloat16":
            yield f"{placed.role} computes in {precision}; {NAMES[system]} in bfloat16"
        if "gradients" in offload and len(offload) < 3:
            yield f"{placed.role} offloads its gradients; {NAMES[system]} only together with weights and states"
    sample = spec.placed("policy", "sample")
    if sample is not None and sample.engine not in ("vllm", "sglang"):
        yield f"{sample.role} runs on `{sample.engine}`; {NAMES[system]} samples with vllm"
