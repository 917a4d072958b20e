"""Which placement is best at which size, as HybridFlow's authors found it, against what the planner's search finds.

Its testbed: machines of eight A100 with one network adapter each; prompts and responses of one length, so that nothing
is guessed of a step. What a fact says of other systems, as a range of speed-ups, is not forecast.
Source: Sheng et al. 2024 (HybridFlow), arXiv 2409.19256, sections 8.1 to 8.4.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.rl_names import LLAMA, device
from benchmarks.forecast.rl_steps import ROOT
from flowgraph.analysis.roles import Role
from flowgraph.app import make_request
from flowgraph.app.planning.problem import prepare
from flowgraph.cluster.cluster import Cluster
from flowgraph.cluster.plan import Layout, RoleSettings
from placements.hardware.engine_constants import bounds
from placements.memory.footprint import fits, total_bytes
from placements.report.search_report import show_s
from placements.search.named_placements import variant
from placements.search.plan_builder import RankedPlan
from placements.search.pool_options import PoolOptions
from placements.search.search import TIED_SHARE, solved
from placements.step.role_costs import DeviceGroup, footprint, sampling_seconds
from placements.step.role_placements import device_group_for
from placements.workload.planning_problem import PlanningProblem

FLOW = "benchmarks/flows/ppo_reward_model.py"
PLACEMENTS: Mapping[str, str] = {
    "colocate": "colocated:deepspeed-chat",
    "split": "split:nemo-aligner",
    "standalone": "standalone:hybridflow",
}
ENGINES = ("train=megatron", "infer=megatron", "sample=vllm")
RELEASES: Mapping[str, str] = {"vllm": "0.2"}
"""The newest releases of our constants that are not later than the testbed's: vLLM 0.3.1 of February 2024.

Of Megatron there is one of 2022, whose attention keeps its scores in memory, and the newest; Megatron-LM 0.6 had fused
attention as the newest has.
"""
TENSOR_DEGREES = (1, 2, 4, 8)
CACHE_SHARES = tuple(each / 20 for each in range(18, 2, -1))  # of a device, the largest that fits first


@dataclass(frozen=True)
class Setup:
    """What a fact was found on."""

    policy: str
    critic: str
    devices: int
    kind: str
    machine: int
    network_bytes_per_s: float
    prompt_tokens: int
    response_tokens: int
    batch: int
    updates: int


def read_testbed(row: Row) -> Setup | str:
    """Read the testbed of a fact; where it does not say enough, give what is missing."""
    kind, lengths = device(row["gpu"]), row["lengths"]
    sizes = sizes_of(row["models"])
    said = {
        "prompt": r"prompt (\d+)",
        "response": r"response (\d+)",
        "batch": r"batch (\d+)",
        "updates": r"(\d+) updates",
    }
    numbers = {name: re.search(pattern, lengths) for name, pattern in said.items()}
    machine, rate = re.search(r"(\d+)/node", row["gpu"]), re.search(r"(\d+) ?Gbps", row["gpu"])
    missing = [name for name, each in numbers.items() if each is None]
    missing += [name for name, each in {"device": kind, "models": sizes, "network": rate}.items() if not each]
    if missing or kind is None or not sizes or rate is None or not row["n_gpus"].isdigit():
        return f"no {', '.join(missing) or 'one count of devices'}"
    tokens = {name: int(each[1]) for name, each in numbers.items() if each is not None}
    return Setup(
        *sizes,
        devices=int(row["n_gpus"]),
        kind=kind.name,
        machine=int(machine[1]) if machine else 8,
        network_bytes_per_s=int(rate[1]) * 1e9 / 8,  # of a machine, not of a device: section 8.1
        prompt_tokens=tokens["prompt"],
        response_tokens=tokens["response"],
        batch=tokens["batch"],
        updates=tokens["updates"],
    )


def sizes_of(text: str) -> tuple[str, str] | None:
    """Read the policy's and the critic's model: `13B x4`, `actor/ref 13B, critic/rm 70B`; None for several sizes.

    >>> sizes_of("13B x4"), sizes_of("7B-70B")
    (('meta-llama/Llama-2-13b-hf', 'meta-llama/Llama-2-13b-hf'), None)
    """
    actor, critic = (re.search(rf"{name}[a-z/ ]* (\d+B)", text) for name in ("actor", "critic"))
    alike = re.match(r"(\d+B)(?: x4| actor|$)", text)
    own = (actor[1], critic[1]) if actor and critic else (alike[1], alike[1]) if alike else ("", "")
    return (LLAMA[own[0]], LLAMA[own[1]]) if all(each in LLAMA for each in own) else None


@cache
def problem_of(testbed: Setup) -> PlanningProblem:
    """Return the planning problem of a search on a testbed."""
    models = {"policy": testbed.policy, "critic": testbed.critic, "ref": testbed.policy, "rm": testbed.critic}
    minibatch = max(1, testbed.batch // testbed.updates)
    request = make_request(
        flow=str(ROOT / FLOW),
        model=models,
        batch=testbed.batch,
        settings={"policy.update.minibatch": minibatch, "critic.update.minibatch": minibatch},
        cluster=f"{testbed.devices // testbed.machine}x{testbed.machine}x{testbed.kind}",
        prompt_tokens=testbed.prompt_tokens,
        response_tokens=testbed.response_tokens,
        engine=ENGINES,
    )
    posed = prepare(request).problem
    nodes = (
        each.model_copy(update={"network_bytes_per_s": testbed.network_bytes_per_s}) for each in posed.cluster.nodes
    )
    old = {engine: {name: each.value for name, each in bounds(engine, of).items()} for engine, of in RELEASES.items()}
    return replace(posed, cluster=Cluster(nodes=tuple(nodes)), calibrated=old)


# ------------------------------------------------------------------------------------------- the best placement


@cache
def placements(testbed: Setup) -> Mapping[str, RankedPlan | None]:
    """Return each published placement at its best sizes; None for one that does not fit."""
    problem = problem_of(testbed)
    blocks = PoolOptions(problem)
    return {name: solved(problem, blocks, variant(ours).parts_of(problem.graph)) for name, ours in PLACEMENTS.items()}


def seconds(found: Mapping[str, RankedPlan | None]) -> dict[str, float]:
    """Return the seconds of a step of each placement that fits."""
    return {name: each.step_s for name, each in found.items() if each is not None}


def published(row: Row) -> str:
    """Return the placement that a fact calls best, "" for a fact of another kind.

    >>> published({"kind": "ordinal_best", "value": "standalone{actor:64,critic:32}"}), published({"kind": "ratio"})
    ('standalone', '')
    """
    if row["kind"] != "ordinal_best":
        return ""
    return next((name for name in PLACEMENTS if row["value"].startswith(name)), "")


def _ordered(rows: Iterable[Row]) -> Iterator[tuple[Row, Setup | None, str]]:
    """Yield each fact with its testbed, or None and why it is not forecast."""
    for row in rows:
        testbed = read_testbed(row)
        if row["kind"] != "ordinal_best":
            continue
        if isinstance(testbed, str) or not published(row):
            yield row, None, testbed if isinstance(testbed, str) else f"placement {row['value']}"
        elif published(row) not in seconds(placements(testbed)):
            yield row, None, f"{published(row)} does not fit"
        else:
            yield row, testbed, ""


def agreements(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each fact as 1, and the forecast as 1 where its placement is the best or a tie with it, and 2 where not."""
    for row, testbed, why in _ordered(rows):
        label = f"{row['models']} on {row['n_gpus']}: {row['value']}"
        if testbed is None:
            yield Case(label, 1.0, None, None, "", why)
            continue
        found = seconds(placements(testbed))
        near = found[published(row)] <= min(found.values()) * (1 + TIED_SHARE)
        yield Case(label, 1.0, 1.0 if near else 2.0, 1.0 if published(row) == "colocate" else 2.0)


def losses(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield the seconds of our best placement, as if measured, and of the published one, as forecast: what it loses."""
    for row, testbed, why in _ordered(rows):
        label = f"{row['models']} on {row['n_gpus']}: {row['value']}"
        if testbed is None:
            yield Case(label, 1.0, None, None, "", why)
            continue
        found = seconds(placements(testbed))
        yield Case(label, min(found.values()), found[published(row)], found.get("colocate"))


# ------------------------------------------------------------------------------------------- tensor degree of drawing


def drawing_seconds(testbed: Setup, trained: int) -> dict[int, float]:
    """Return by tensor degree the seconds of drawing, beside a policy and its reference cut over `trained` devices.

    The cache takes what these leave of a device. No optimizer is offloaded.
    """
    problem = problem_of(testbed)
    group = device_group_for(problem, "draw", testbed.devices)
    role = next(each for each in problem.roles if each.name == "policy.sample")
    held = sum(_held_bytes(problem, group, name, trained) for name in ("policy.train", "ref.infer"))
    found = dict[int, float]()
    for tensor in TENSOR_DEGREES:
        layout = Layout(data=testbed.devices // tensor, tensor=tensor)
        runnings = (
            RoleSettings(precision=problem.sampling_precision, cache_share=share, sleeps=True) for share in CACHE_SHARES
        )
        fitting = (each for each in runnings if _fits(problem, group, role, layout, each, held))
        for running in islice(fitting, 1):
            drawn = sampling_seconds(problem, group, "vllm", layout, running, problem.loads_of(role)[0])
            if drawn is not None and drawn.total_s is not None:
                found[tensor] = drawn.total_s
    return found


def _held_bytes(problem: PlanningProblem, group: DeviceGroup, role: str, tensor: int) -> int:
    """Return what a role holds on each device while another works: weights, gradients and states cut over `tensor`."""
    cut = Layout(
        data=group.devices // tensor, tensor=tensor, sharding="optimizer" if role.endswith("train") else "none"
    )
    found = next(each for each in problem.roles if each.name == role)
    return total_bytes(
        footprint(
            problem, found, group, problem.engines_of(found.use)[0], cut, RoleSettings(precision="bfloat16")
        ).resident
    )


def _fits(
    problem: PlanningProblem, group: DeviceGroup, role: Role, layout: Layout, running: RoleSettings, held_bytes: int
) -> bool:
    needed_bytes = footprint(problem, role, group, problem.engines_of(role.use)[0], layout, running).peak_bytes
    return fits(held_bytes + needed_bytes, group.of.memory_bytes)


def degrees(rows: Iterable[Row]) -> Iterator[Case]:
    """Yield facts of the tensor degree that draws fastest: its seconds, of those with the degree that trains."""
    for row in rows:
        told = re.match(r"generation TP (\d+) best; latency vs TP(\d+)", row["claim"])
        trained, testbed = re.search(r"train TP(\d+)", row["models"]), read_testbed(row)
        if told is None or trained is None:
            continue
        label = f"{row['models']} on {row['n_gpus']}: TP {told[1]}"
        if isinstance(testbed, str):
            yield Case(label, 1 + float(row["value"]) / 100, None, None, "", testbed)
            continue
        found = drawing_seconds(testbed, int(trained[1]))
        best, against = (found.get(int(each)) for each in told.groups())
        forecast = best / against if best and against else None
        yield Case(label, 1 + float(row["value"]) / 100, forecast, 1.0, "", "" if forecast else "does not fit")


# ------------------------------------------------------------------------------------------- what was read by eye


def throughputs(rows: Iterable[Row]) -> Iterator[Case]:
    """Yield tokens per second that were read off figures: 20% off either way; the null model is one rate a device."""
    known = [row for row in rows if row["kind"] == "tokens_per_s" and row["value"].isdigit()]
    rates = [float(row["value"]) / int(row["n_gpus"]) for row in known]
    for row in known:
        testbed, label = read_testbed(row), f"{row['claim']}: {row['models']} on {row['n_gpus']}"
        if isinstance(testbed, str):
            yield Case(label, float(row["value"]), None, None, "", testbed)
            continue
        found = seconds(placements(testbed))
        ours = next((found[name] for name in PLACEMENTS if name in row["claim"] and name in found), None)
        tokens = testbed.batch * (testbed.prompt_tokens + testbed.response_tokens)
        forecast = tokens / (ours or min(found.values())) if found else None
        yield Case(label, float(row["value"]), forecast, median(rates) * testbed.devices, "", "does not fit")


COLUMNS = frozenset(
    ("system", "algorithm", "models", "gpu", "n_gpus", "lengths", "claim", "kind", "value", "confidence")
)
TABLES = (
    Table(
        "placements that were found best",
        COLUMNS,
        (
            View("the published one is not our best, or near it: the mean is the share of facts", "-", agreements),
            View("a step of the published one, to our best", "s", losses),
            View("drawing with the best tensor degree, to drawing with the training's", "share of seconds", degrees),
            View("tokens by eye, good for an order only", "tokens/s", throughputs),
        ),
    ),
)


# ------------------------------------------------------------------------------------------- by hand


def text(rows: Iterable[Row]) -> str:
    """Write for each fact the seconds of our placements with the sizes of their pools, and what was published."""
    lines = list[str]()
    for row, testbed, why in _ordered(rows):
        lines.append(f"{row['models']} on {row['n_gpus']}: published {row['value']}{', ' if why else ''}{why}")
        if testbed is None:
            continue
        found = placements(testbed)
        best = min(seconds(found).values())
        for name, each in found.items():
            off = "does not fit" if each is None else f"{show_s(each.step_s)}, {each.step_s / best - 1:+.1%}"
            lines.append(f"  {name:10} {off}  {'' if each is None else _sizes(each)}".rstrip())
    return "\n".join(lines)


def _sizes(found: RankedPlan) -> str:
    blocks = zip(found.parts(), found.blocks, strict=True)
    return " | ".join(f"{'+'.join(part)} on {sum(option.devices)}" for part, (_, option) in blocks)


def main() -> int:
    """Print what is found for each fact of benchmarks/measured, or of the files that are named."""
    from benchmarks.forecast.__main__ import MEASURED, read

    paths = [Path(each) for each in sys.argv[1:]] or [MEASURED / "placement_facts.csv"]
    for path in paths:
        print(text(read(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
