"""What the timers of other systems time, as nodes of a flow: by the kind of a node and the role that runs it.

Not here: how a log is read (`timing_logs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from placements.calibration.measured_runs import STEP, SYNC, Timing
from placements.calibration.timing_logs import TimingLog
from placements.time.host_work import host_work_of
from placements.workload.planning_problem import PlanningProblem

Group = Literal[
    "generation",
    "policy forward",
    "reference forward",
    "critic forward",
    "policy update",
    "critic update",
    "score",
    "advantages",
    "sync",
    "step",
]
"""Nodes that a timer covers together. A policy is a model that samples, a critic one that is trained and does not."""

VERL: Mapping[str, tuple[Group, ...]] = {
    "gen": ("generation",),
    "old_log_prob": ("policy forward",),
    "ref": ("reference forward",),
    "ref_log_prob": ("reference forward",),
    "values": ("critic forward",),
    "update_actor": ("policy update",),
    "update_critic": ("critic update",),
    "reward": ("score",),
    "adv": ("advantages",),
    "update_weights": ("sync",),
    "reshard": ("sync",),
    "step": ("step",),
}
"""Source: verl 0.7, verl/trainer/ppo/ray_trainer.py, `marked_timer`; logged as `timing_s/NAME`."""

NEMO_RL: Mapping[str, tuple[Group, ...]] = {
    "generation": ("generation",),
    "policy_and_reference_logprobs": ("policy forward", "reference forward"),
    "policy_training": ("policy update",),
    "reward_calculation": ("score",),
    "prepare_for_generation/total": ("sync",),
    "weight_sync": ("sync",),
    "total_step_time": ("step",),
}
"""Source: NeMo RL 0.5, nemo_rl/algorithms/grpo.py, `timer.time`; logged as `timing/train/NAME`."""

INSIDE: Mapping[str, str] = {
    "generate_sequences": "part of gen",
    "prepare_for_generation/transfer_and_update_weights": "part of prepare_for_generation/total",
    "exposed_generation": "only the part of generation that training waits for",
    "wait_prev_gen": "only the part of generation that training waits for",
}
"""Timers that lie inside another, or that time a wait."""


@dataclass(frozen=True)
class MatchedTimings:
    """The timings of a log that belong to nodes of a plan, and the timers that do not, each with the reason."""

    timings: tuple[Timing, ...]
    unused: Mapping[str, str]


def match_timings(log: TimingLog, setting: PlanningProblem) -> MatchedTimings:
    """Return what the timers of a log time in a flow. In overlapped steps verl's `gen` is a wait, so it is not used."""
    if log.system == "trace":
        return MatchedTimings(tuple(Timing(name, s, tuple(name.split(", "))) for name, s in log.seconds.items()), {})
    table = VERL if log.system == "verl" else NEMO_RL
    timings, unused = list[Timing](), dict[str, str]()
    for key, seconds in log.seconds.items():
        name = key.removeprefix(log.prefix)
        groups = table.get(name)
        names = tuple(node for group in groups or () for node in nodes_in(group, setting))
        if groups is None:
            unused[key] = INSIDE.get(name, "not a timer that is known")
        elif name == "gen" and setting.lag:
            unused[key] = INSIDE["wait_prev_gen"]
        elif not names:
            unused[key] = f"the flow has no {' and no '.join(groups)}"
        elif seconds <= 0:
            unused[key] = "it is 0 s"
        else:
            timings.append(Timing(key, seconds, names))
    return MatchedTimings(tuple(timings), unused)


def nodes_in(group: Group, setting: PlanningProblem) -> tuple[str, ...]:
    """Return the nodes of a flow that a group covers; for syncs and the step the name of all of them together."""
    if group == "step":
        return (STEP,)
    if group == "sync":
        return (SYNC,) if setting.synced else ()
    if group in ("score", "advantages"):
        return tuple(_host_nodes(setting, scores=group == "score"))
    return tuple(load.node for load in setting.loads if group in _groups_of_load(setting, load.node))


def _groups_of_load(setting: PlanningProblem, node: str) -> Sequence[Group]:
    load = next(each for each in setting.loads if each.node == node)
    sampled = {role.param for role in setting.roles if role.use == "sample"}
    if load.phase == "generate":
        return ("generation",)
    kinds = {each.name: each.op.kind for each in setting.running.all_nodes}
    if kinds.get(node) == "score":
        return ("score",)
    policy = load.role.param in sampled
    if load.phase == "update":
        return ("policy update",) if policy else ("critic update",)
    if load.role.use == "infer":
        return ("reference forward",)
    return ("policy forward",) if policy else ("critic forward",)


def _host_nodes(setting: PlanningProblem, *, scores: bool) -> Iterator[str]:
    """Return nodes of the host that score, or all others; nodes of judges score too."""
    own = {name for role in setting.roles for name in role.nodes}
    for node in setting.running.nodes:
        judge = scores and node.op.kind == "score" and any(load.node == node.name for load in setting.loads)
        on_host = node.name not in own and (node.op.kind == "score") == scores
        seconds = host_work_of(setting).node_seconds(node.name, setting.host).total_s if on_host else 0.0
        if judge or seconds:
            yield node.name
