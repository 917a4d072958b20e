"""What every export has to say of a plan that its system cannot do: the notes that do not depend on the system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowgraph.cluster.plan import RoleSettings
from nodes.interop.algorithm import Algorithm, aggregated
from nodes.interop.export_spec import ExportDevices, ExportSpec, Part, most_tokens


@dataclass
class ExportNotes:
    """Notes as they come up, each once, in order."""

    system: str
    said: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.said:
            self.said.append(text)


def say_of_all(job: ExportSpec, notes: ExportNotes) -> None:
    """Say what none of the systems has: nodes without a key, parts without a place, machines of different sizes."""
    for text in (*_of_the_flow(job, notes.system), *_of_lengths(job), *_of_running(job, notes.system)):
        notes.say(text)


def say_of_terms(algorithm: Algorithm, told: str | float, how: str, notes: ExportNotes) -> None:
    """Say which terms beside the surrogate the flow aggregates otherwise than `told`, as which a system does."""
    for name, own in algorithm.aggregations.items():
        if own != told:
            notes.say(f"`{name}` is aggregated as {aggregated(own)}; {how}: {aggregated(told)}")


def say_uneven(site: ExportDevices, what: str, notes: ExportNotes) -> None:
    """Say that a pool gives unequal numbers of devices, of which the system takes the least."""
    if site.uneven:
        counts = ", ".join(map(str, site.counts))
        notes.say(
            f"{what} has {counts} devices on its machines; {notes.system} wants as many on each: "
            f"{site.per_node} are used"
        )


def _of_the_flow(job: ExportSpec, system: str) -> Iterator[str]:
    algorithm = job.algorithm
    if algorithm.unsaid:
        names = ", ".join(f"`{name}`" for name in algorithm.unsaid)
        yield f"nodes without a key of their own are left out: {names}"
    for param in job.others:
        yield f"`{param}` plays no part that has a key; it is left out"
    if job.has("judge"):
        judge = job.parts["judge"]
        yield f"`{judge}` writes verdicts, which has no key: serve it, and call it from the reward function"
    yield from _of_scores(algorithm, system)


def _of_scores(algorithm: Algorithm, system: str) -> Iterator[str]:
    """Say what the reward function of a system has to give: the sum of scores, or a rule of ours."""
    scores = ", ".join(map(str, algorithm.scores))
    if algorithm.estimator == "gdpo" and system == "verl":
        names = " and ".join(f"`{name}`" for name in algorithm.components)
        yield f"REWARD_FILE's compute_score returns a dict: `score`, and each reward of {scores}, as {names}"
    elif algorithm.estimator == "gdpo" and system == "nemo-rl":
        yield f"NeMo RL's gdpo takes its rewards from the environment, and is told no weights: the flow has {scores}"
    elif len(algorithm.scores) > 1:
        name = {"openrlhf": "OpenRLHF", "nemo-rl": "NeMo RL"}.get(system, system)
        yield f"{name} has one reward, the flow {len(algorithm.scores)}: what gives it has to add up {scores}"
    elif algorithm.own_reward:
        rule = algorithm.rules[0]
        yield f"the rule `{rule}` is ours: REWARD_FILE names a file with one of the system's form"


def _of_lengths(job: ExportSpec) -> Iterator[str]:
    prompt, response = job.assumed.prompt_tokens, job.assumed.response_tokens
    if job.longest is None and most_tokens(prompt) is None:
        yield f"the longest prompt is not told by `{prompt}`: {job.prompt_tokens} tokens"
    elif "=" in prompt and "max=" not in prompt:
        yield f"no longest prompt is said by `{prompt}`: {job.prompt_tokens} tokens are taken for it"
    if job.longest is None and response and most_tokens(response) is None:
        yield f"the longest response is not told by `{response}`: {job.algorithm.max_tokens} tokens"
    if job.algorithm.max_tokens != job.flow_cuts_at:
        most, cut = job.algorithm.max_tokens, job.flow_cuts_at
        yield f"the flow cuts responses at {cut} tokens; the forecast has up to {most}, and so has what is written"


def _of_running(job: ExportSpec, system: str) -> Iterator[str]:
    trained: Sequence[Part] = ("policy", "critic")
    for part in trained:
        placed = job.placed(part, "train")
        if placed is None:
            continue
        if placed.running.precision not in ("bfloat16", "float32"):
            yield f"{placed.role} computes in {placed.running.precision}; {system} is told bfloat16"
        elif placed.running.precision == "float32":
            yield f"{placed.role} computes in float32; {system} computes in bfloat16, on weights and states in float32"
        if _gradients_alone(placed.running):
            yield f"{placed.role} offloads its gradients; {system} does that with weights and states only"
    sample = job.placed("policy", "sample")
    if sample is not None and sample.engine not in ("vllm", "sglang"):
        yield f"{sample.role} runs on `{sample.engine}`; {system} samples with vllm"


def _gradients_alone(running: RoleSettings) -> bool:
    return "gradients" in running.offload and len(running.offload) < 3
