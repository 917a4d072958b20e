"""Rows that give a throughput alone: whether the planner puts the systems of a setting in the order that was measured.

A system is what its placement's text says: which roles share devices, what trains and what draws, and how old that is.
How many prompts a step has is assumed for all alike. Not here: rows with seconds (`rl`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.forecast.report import Case, Row
from benchmarks.forecast.rl_names import LLAMA, Degrees, device, machine_devices
from benchmarks.forecast.rl_rows import read_end_to_end
from benchmarks.forecast.rl_steps import homes_of_workload, problem_of, step
from benchmarks.forecast.rl_workloads import Seated, Workload
from flowgraph.errors import FlowError
from placements.hardware.engine_constants import bounds
from placements.search.named_placements import variant
from placements.search.pool_options import PoolOptions
from placements.search.search import TIED_SHARE, find, solved
from placements.step.step_forecast import step_of
from placements.workload.planning_problem import PlanningProblem

FLOW = "benchmarks/flows/ppo_reward_model.py"
PROMPTS = 32  # of each device in a step: 512 on 16. Source: Mei et al. 2024 (ReaL), arXiv 2406.14088, section 8.1
SAMPLES = "8"  # of a prompt, where a row does not say
RIGHT, COIN, WRONG = 1.0, 1.5, 2.0
"""How a pair is counted, so that the mean error of a view is the share that is ordered wrong."""


@dataclass(frozen=True)
class System:
    """How a system runs: its named placement, "" for a searched one, what trains and reads, and what draws.

    `draws` is a release of vLLM: the first launches kernels one by one, as engines did that had no serving engine. A
    `symmetric` system has one layout for all that a model does.
    """

    placement: str
    trains: str
    draws: str = ""
    symmetric: bool = False


# By words of the placement's text, the first that is found.
SYSTEMS: Mapping[str, System] = {
    "hybrid engine": System("colocated:deepspeed-chat", "fsdp", "0.2"),
    "3 groups": System("split:openrlhf", "fsdp", "0.2"),
    "3d": System("colocated:deepspeed-chat", "megatron", symmetric=True),
    "searched": System("", "megatron"),
}
MICRO_BATCH_ROWS = (1, 4, 16)
COLOCATED = "colocated:deepspeed-chat"


@dataclass(frozen=True)
class Run:
    """A system in a setting: what was measured, and what is forecast, both the more the better."""

    name: str
    system: System
    measured: float
    forecast: float


def cases_of(rows: Iterable[Row]) -> Iterator[Case]:
    """Yield each pair of systems of a setting whose throughputs are no tie, and rows that no order can be made of."""
    settings = dict[tuple[str, ...], dict[str, Row]]()
    for row in rows:
        if row["unit"] in ("s", "h"):
            continue
        key = tuple(row[each] for each in ("algorithm", "model", "gpu", "n_gpus", "prompt_len", "max_resp_len"))
        settings.setdefault(key, {}).setdefault(row["framework"], row)
    for key, by_system in settings.items():
        found = [(row, _run(row)) for row in by_system.values()]
        for row, run in found:
            if isinstance(run, str):
                yield Case(f"{row['framework']} {' '.join(key)}", 1.0, None, None, "", run)
        yield from _pairs(" ".join(key), [run for _, run in found if isinstance(run, Run)])


def _pairs(label: str, found: Sequence[Run]) -> Iterator[Case]:
    for one, other in combinations(found, 2):
        if max(one.measured, other.measured) <= min(one.measured, other.measured) * (1 + TIED_SHARE):
            continue
        better, worse = sorted((one, other), key=lambda run: -run.measured)
        near = max(better.forecast, worse.forecast) <= min(better.forecast, worse.forecast) * (1 + TIED_SHARE)
        forecast = COIN if near else RIGHT if better.forecast > worse.forecast else WRONG
        shares = [run.system.placement == COLOCATED for run in (better, worse)]
        null = COIN if shares[0] == shares[1] else RIGHT if shares[0] else WRONG
        yield Case(f"{better.name} over {worse.name}: {label}", 1.0, forecast, null, f"{better.name} over {worse.name}")


def _run(row: Row) -> Run | str:
    text = row["placement_mode"].casefold()
    system = next((each for words, each in SYSTEMS.items() if words in text), None)
    if system is None:
        return _plain(row)
    workload = workload_of(row, system)
    if isinstance(workload, str):
        return workload
    try:
        seconds = _step_s(workload, system)
    except FlowError as error:
        return str(error).splitlines()[0]
    return "does not fit" if seconds is None else Run(row["framework"], system, float(row["value"]), 1 / seconds)


def _plain(row: Row) -> Run | str:
    """Forecast a system that is told by its placement's text alone, with a batch as others have it where none is."""
    samples = row["samples_per_prompt"] or ("1" if "PPO" in row["algorithm"] else SAMPLES)
    prompts = row["prompts_per_step"] or str(PROMPTS * int(row["n_gpus"]) // int(samples))
    clocked = {"metric": "step", "unit": "s", "quality": "table"}
    told = read_end_to_end({**row, **clocked, "prompts_per_step": prompts, "samples_per_prompt": samples})
    found = step(told.workload) if told.workload is not None else told.why
    if isinstance(found, str) or found.period_s is None:
        return found if isinstance(found, str) else "no forecast"
    together = told.placed is not None and told.placed.form == "together"
    system = System(COLOCATED if together else "", row["train_backend"])
    return Run(row["framework"], system, float(row["value"]), 1 / found.period_s)


def workload_of(row: Row, system: System) -> Workload | str:
    """Read what a system runs: four models, of fixed lengths, on machines of that device."""
    kind, sizes = device(row["gpu"]), sizes_of(row["model"])
    missing = [
        name for name, each in {"device": kind, "model": sizes, "length": row["max_resp_len"]}.items() if not each
    ]
    if missing or kind is None or sizes is None:
        return f"no {', '.join(missing)}"
    devices, machine = int(row["n_gpus"]), machine_devices(kind)
    return Workload(
        label=f"{row['framework']} {row['model']} {devices} {kind.name}",
        source=row["source"],
        framework=row["framework"],
        flow=FLOW,
        models=sizes,
        cluster=f"{max(1, devices // machine)}x{min(devices, machine)}x{kind.name}",
        batch=int(row["prompts_per_step"] or PROMPTS * devices),
        prompt_tokens=row["prompt_len"],
        response_tokens=row["mean_resp_len"] or row["max_resp_len"],
        engines={"train": system.trains, "sample": "vllm", "infer": system.trains},
    )


def sizes_of(text: str) -> dict[str, str] | None:
    """Read which LLaMA each of four models is: `LLaMA actor/ref 7B, critic/reward 34B`, `LLaMA all four 7B`.

    >>> sizes_of("LLaMA actor/ref 34B, critic/reward 7B")["critic"], sizes_of("GPT")
    ('meta-llama/Llama-2-7b-hf', None)
    """
    every = re.search(r"(?:all four|x4) ?(\d+B)|(\d+B) x4", text)
    actor, critic = (re.search(rf"{name}[a-z/]* (\d+B)", text) for name in ("actor", "critic"))
    own = (every[1] or every[2],) * 2 if every else (actor[1], critic[1]) if actor and critic else ("", "")
    if not all(each in LLAMA for each in own):
        return None
    policy, value = (LLAMA[each] for each in own)
    return {"policy": policy, "critic": value, "ref": policy, "rm": value}


def _step_s(workload: Workload, system: System) -> float | None:
    """Return the seconds of a step under the system's placement, at its best sizes; None if it does not fit.

    Raises what a search raises.
    """
    problem = _planning_problem(workload, system)
    if system.symmetric:
        cut = Seated("all", Degrees(tensor=problem.classes[0].node_devices))
        alike = replace(workload, pools={"all": workload.devices}, roles={role.name: cut for role in problem.roles})
        homes = homes_of_workload(alike, problem, rows=MICRO_BATCH_ROWS)
        return None if isinstance(homes, str) else step_of(problem, homes).period_s
    if not system.placement:
        return find(problem).best.step_s
    found = solved(problem, PoolOptions(problem), variant(system.placement).parts_of(problem.graph))
    return None if found is None else found.step_s


def _planning_problem(workload: Workload, system: System) -> PlanningProblem:
    problem = problem_of(workload)
    if not system.draws:
        return problem
    old = {name: each.value for name, each in bounds("vllm", system.draws).items()}
    return replace(problem, calibrated={"vllm": old})
