"""The timers of other systems as nodes of a flow, matched by a node's kind and role.

Not here: reading a log (`timing_logs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowgraph.cluster.plan import Plan
from placements.calibration.timing_logs import TimingLog, read_log
from placements.calibration.timings import STEP, SYNC, Timing
from placements.time.host_work import host_work_of
from placements.workload.batch_partition import many
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
"""Timers that are part of another, or that measure a wait."""


TIMED = ("generate", "logprob", "update", "score", "host", "sync")
"""Kinds of tasks whose seconds a calibration scales."""


@dataclass(frozen=True)
class MatchedTimings:
    """The timings of a log that belong to nodes of a plan, and the other timers, each with the reason."""

    timings: tuple[Timing, ...]
    unused: Mapping[str, str]


def match_timings(log: TimingLog, problem: PlanningProblem) -> MatchedTimings:
    """Return the timings of a log that belong to nodes of the flow, and the unmatched timers, each with the reason.

    A timer is matched by its name. Timers of 0 s, those whose nodes the flow does not have, and those that measure a
    part of another timer or a wait are not matched. verl's timer `gen` measures a wait if the weights that sample may
    be old. The ranges of a trace already have names of tasks, and all are matched.
    """
    if log.system == "trace":
        return MatchedTimings(tuple(Timing(name, s, tuple(name.split(", "))) for name, s in log.seconds.items()), {})
    table = VERL if log.system == "verl" else NEMO_RL
    nodes, timings, unused = _nodes_by_group(problem), list[Timing](), dict[str, str]()
    for key, seconds in log.seconds.items():
        name = key.removeprefix(log.prefix)
        groups = table.get(name)
        names = tuple(node for group in groups or () for node in nodes.get(group, ()))
        if groups is None:
            unused[key] = INSIDE.get(name, "not a timer that is known")
        elif name == "gen" and problem.lag:
            unused[key] = INSIDE["wait_prev_gen"]
        elif not names:
            unused[key] = f"the flow has no {' and no '.join(groups)}"
        elif seconds <= 0:
            unused[key] = "it is 0 s"
        else:
            timings.append(Timing(key, seconds, names))
    return MatchedTimings(tuple(timings), unused)


def logged_timings(
    text: str, path: Path, problem: PlanningProblem, plan: Plan, say: Callable[[str], None]
) -> tuple[Timing, ...]:
    """Return the median seconds of nodes and tasks of `plan` in the log of a run, one timing for each used timer.

    `text` is the content of the log at `path`. `say` receives a note for each timer that is not used, and one that
    counts all other metrics. Raises DataError for a log that `read_log` cannot read.
    """
    tasks = [task.name for task in plan.step.tasks if task.kind in TIMED] if plan.step is not None else []
    # Profiles put `-` between the nodes of a task.
    log = read_log(
        text, str(path), {name.replace(", ", "-"): name for name in tasks} | dict(zip(tasks, tasks, strict=True))
    )
    matched = match_timings(log, problem)
    for name in log.unreadable:
        say(f"not used: {path.name} {name}: not a number of seconds")
    for name, why in matched.unused.items():
        say(f"not used: {path.name} {name}: {why}")
    if log.other:
        unread = many(log.other, "range" if log.system == "trace" else "metric")
        say(f"not used: {path.name}: {unread} of other names")
    return matched.timings


def _nodes_by_group(problem: PlanningProblem) -> Mapping[Group, Sequence[str]]:
    sampled = {role.param for role in problem.roles if role.use == "sample"}
    kinds = {node.name: node.op.kind for node in problem.running.all_nodes}
    of_roles, loads = {name for role in problem.roles for name in role.nodes}, {load.node for load in problem.loads}
    groups: dict[Group, list[str]] = {"step": [STEP], "sync": [SYNC] if problem.synced else []}
    for load in problem.loads:
        policy = load.role.param in sampled
        if load.phase == "generate":
            group: Group = "generation"
        elif kinds.get(load.node) == "score":
            continue
        elif load.phase == "update":
            group = "policy update" if policy else "critic update"
        elif load.role.use == "infer":
            group = "reference forward"
        else:
            group = "policy forward" if policy else "critic forward"
        groups.setdefault(group, []).append(load.node)
    host = host_work_of(problem)
    for node in problem.running.nodes:
        group = "score" if node.op.kind == "score" else "advantages"
        is_judge, on_host = group == "score" and node.name in loads, node.name not in of_roles
        if is_judge or (on_host and host.node_seconds(node.name, problem.host).total_s):
            groups.setdefault(group, []).append(node.name)
    return groups
