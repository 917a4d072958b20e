"""How asynchronous systems split their devices between rollout and training, against the planner's own split.

The planner is asked as `flowgraph plan --staleness N --streamed` is, for rollouts on one pool and all else on another;
sizes and layouts are its choice. What lies between two splits is counted in steps of its grid: the sizes that it
considers for a pool. A row states its mean length, or it is guessed and the row is held apart.
By hand, `python -m benchmarks.forecast.splits` also says what the planner chooses for other mean lengths.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from benchmarks.forecast.cells import COUNT, columns
from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.rl_names import Degrees, degrees, device, engine, model
from benchmarks.forecast.rl_rows import FLOWS, MEAN_SHARE, PROMPT_TOKENS, cluster_text
from benchmarks.forecast.rl_steps import problem_of
from benchmarks.forecast.rl_workloads import Workload
from placements.format import table
from placements.hardware.topology import sizes
from placements.report.search_report import show_s
from placements.search.plan_builder import RankedPlan
from placements.search.pool_options import PoolOptions
from placements.search.search import solved
from placements.solver.problem import Option
from placements.workload.planning_problem import PlanningProblem

SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the longest response, the means that are tried where a row states none."""


@dataclass(frozen=True)
class Split:
    """Devices that generate, and devices that train, with the seconds of a step."""

    rollout: int
    training: int
    step_s: float

    def __str__(self) -> str:
        return f"{self.rollout} | {self.training}"


def asked(row: Row, mean_share: float = MEAN_SHARE) -> PlanningProblem | str:
    """Return what the planner is asked for a row; where the row says too little, what is missing."""
    return _asked(tuple(row.items()), mean_share)


@cache
def _asked(cells: tuple[tuple[str, str], ...], mean_share: float) -> PlanningProblem | str:
    row = dict(cells)
    kind, found = device(row["gpu"]), model(row["model"])
    needed = ("prompts_per_step", "samples_per_prompt", "max_resp_len")
    missing = [name for name, each in {"device": kind, "model": found}.items() if each is None]
    missing += [name.replace("_", " ") for name in needed if not row[name]]
    if missing or kind is None or found is None:
        return f"no {', '.join(missing)}"
    longest = int(row["max_resp_len"])
    mean = row["mean_resp_len"] or f"{longest * mean_share:g}"
    reference, again = "ref" in row["reads"], "old" in row["reads"]
    trains, draws = engine(row["train_backend"], "fsdp"), engine(row["rollout_backend"], "vllm")
    workload = Workload(
        label=row["system"],
        source=row["source"],
        framework=row["system"],
        flow=f"{FLOWS}:{'grpo' if reference else 'dapo'}",
        models=dict.fromkeys(("policy", "ref") if reference else ("policy",), found),
        cluster=cluster_text(int(row["n_gpus"]), kind),
        batch=int(row["prompts_per_step"]),
        prompt_tokens=row["prompt_len"] or str(PROMPT_TOKENS),
        response_tokens=f"mean={mean},max={longest}",
        settings=(
            f"samples={row['samples_per_prompt']}",
            f"lag={row['staleness']}",
            f"read_again={str(again).lower()}",
            f"policy.update.minibatch={row['minibatch_prompts'] or row['prompts_per_step']}",
        ),
        engines={"train": trains, "sample": draws, "infer": trains},
        precision="fp8" if row["precision"] == "fp8" else "bfloat16",
        streamed=row["caches"] != "drained",
    )
    return replace(problem_of(workload), keeps_caches=row["caches"] == "kept")


@dataclass(frozen=True)
class Units:
    """Devices that one copy needs as a row states it is cut: a pool has a multiple of them."""

    rollout: int = 1
    training: int = 1


def units_of(row: Row) -> Units:
    """Return the devices of one copy that generates, and of one that trains; 1 where a row does not say.

    Megatron spreads experts over tensor and context ranks too, and over data ranks if these are too few.

    >>> units_of({"rollout_tp": "8", "train_layout": "TP4 CP1 EP16 PP8"}), units_of({})
    (Units(rollout=8, training=128), Units(rollout=1, training=1))
    """
    cut = degrees(row.get("train_layout", "")) or Degrees()
    return Units(int(row.get("rollout_tp") or 1), cut.pipeline * max(cut.tensor * cut.sequence, cut.expert))


class _Cut(PoolOptions):
    """The ways to run blocks of roles on pools that are multiples of what one copy needs."""

    def __init__(self, problem: PlanningProblem, units: Units) -> None:
        super().__init__(problem)
        self.units = units

    def options(self, block: frozenset[int], max_s: float = inf) -> Sequence[Option]:
        draws = any(self.problem.roles[place].use == "sample" for place in block)
        unit = self.units.rollout if draws else self.units.training
        return [each for each in super().options(block, max_s) if sum(each.devices) % unit == 0]


@cache
def split_of(problem: PlanningProblem, units: Units) -> Split | None:
    """Return the planner's split of a problem: rollouts on one pool, all else on another; None if none fits."""
    rollout = tuple(role.name for role in problem.roles if role.use == "sample")
    rest = tuple(role.name for role in problem.roles if role.use != "sample")
    found = solved(problem, _Cut(problem, units=units), (rollout, rest))
    return None if found is None else _split(found)


def _split(found: RankedPlan) -> Split:
    counts = {part: sum(option.devices) for part, (_, option) in zip(found.parts(), found.blocks, strict=True)}
    rollout = sum(count for part, count in counts.items() if any(role.endswith(".sample") for role in part))
    return Split(rollout, sum(counts.values()) - rollout, found.step_s)


def published(row: Row, problem: PlanningProblem) -> Split | None:
    """Return a row's own split as the planner would run it; None if it does not fit, or is not on the grid."""
    found = _in_ratio(problem, _theirs(row))
    return found if found is not None and (found.rollout, found.training) == _theirs(row) else None


@cache
def _in_ratio(problem: PlanningProblem, ratio: tuple[int, int]) -> Split | None:
    return split_of(replace(problem, ratio=ratio), Units())


def steps_between(problem: PlanningProblem, ours: Split, theirs: tuple[int, int]) -> int:
    """Return how many sizes of the grid lie between two splits, of the pool for which there are more."""
    (of,) = problem.classes
    grid = sizes(of)
    return max(steps(grid, ours.rollout, theirs[0]), steps(grid, ours.training, theirs[1]))


def steps(grid: Sequence[int], one: int, other: int) -> int:
    """Count the sizes that are passed from one to the other, which is counted if it is not on the grid.

    >>> [steps((1, 2, 4, 8, 16), *each) for each in ((4, 4), (4, 8), (16, 4), (8, 12))]
    [0, 1, 2, 1]
    """
    low, high = min(one, other), max(one, other)
    return bisect_left(grid, high) - bisect_right(grid, low) + 1 if high > low else 0


def _theirs(row: Row) -> tuple[int, int]:
    return int(row["rollout_gpus"]), int(row["train_gpus"])


def within_a_step(rows: Iterable[Row], stated: str) -> Iterator[Case]:
    """Yield each row as 1, and the forecast as 1 where ours is within one step of the grid, and 2 where it is not."""
    for row in rows:
        if row["stated"] != stated:
            continue
        label, problem = _label(row), asked(row)
        ours = None if isinstance(problem, str) else split_of(problem, units_of(row))
        if isinstance(problem, str) or ours is None:
            yield Case(label, 1.0, None, None, "", problem if isinstance(problem, str) else "nothing fits")
            continue
        half = Split(int(row["n_gpus"]) // 2, int(row["n_gpus"]) // 2, 0.0)
        near, null = (1.0 if steps_between(problem, each, _theirs(row)) <= 1 else 2.0 for each in (ours, half))
        yield Case(label, 1.0, near, null)


def lost(rows: Iterable[Row], stated: str) -> Iterator[Case]:
    """Yield the seconds of our split, as if measured, and of the published one, as forecast: what it loses by us."""
    for row in rows:
        if row["stated"] != stated:
            continue
        label, problem = _label(row), asked(row)
        ours, theirs = (
            (None, None) if isinstance(problem, str) else (split_of(problem, units_of(row)), published(row, problem))
        )
        why = problem if isinstance(problem, str) else "" if theirs else "the published split is not on the grid"
        yield Case(label, ours.step_s if ours else 1.0, theirs.step_s if theirs else None, None, "", why)


def _label(row: Row) -> str:
    return f"{row['system']} {row['model']} on {row['n_gpus']} {row['gpu']}"


COLUMNS = frozenset(("system", "rollout_gpus", "train_gpus", "staleness", "caches", "stated", "chosen"))
TABLES = (
    Table(
        "splits of asynchronous systems",
        COLUMNS,
        (
            View("stated: within one step of the grid; the mean is the share that is not", "-",
                 lambda rows: within_a_step(rows, "yes")),
            View("stated: a step of the published split, to ours", "s", lambda rows: lost(rows, "yes")),
            View("a mean length guessed: within one step of the grid", "-", lambda rows: within_a_step(rows, "no")),
            View("a mean length guessed: a step of the published split, to ours", "s", lambda rows: lost(rows, "no")),
        ),
        columns(COUNT, "n_gpus", "rollout_gpus", "train_gpus", "staleness"),
    ),
)  # fmt: skip


# ------------------------------------------------------------------------------------------- by hand


def text(rows: Sequence[Row]) -> str:
    """Write each row's split beside ours, the steps of the grid between, and the seconds of both by our forecast."""
    lines = [
        [
            "system",
            "model",
            "devices",
            "lag",
            "published",
            "chosen",
            "ours",
            "steps",
            "theirs",
            "ours",
            "",
            "any layout",
        ]
    ]
    for row in rows:
        shares = (MEAN_SHARE,) if row["mean_resp_len"] else SHARES
        lines += [line for share in shares if (line := _line(row, share))]
    return "\n".join(table(lines))


def _line(row: Row, share: float) -> list[str]:
    problem = asked(row, share)
    head = [row["system"], row["model"], f"{row['n_gpus']} {row['gpu']}".strip(), row["staleness"]]
    head += [f"{row['rollout_gpus']} | {row['train_gpus']}", row["chosen"]]
    if isinstance(problem, str):
        return [*head, *[""] * 4, problem, ""] if share == SHARES[0] else []
    mean = row["mean_resp_len"] or f"{int(row['max_resp_len']) * share:g}, guessed"
    ours, free = (split_of(problem, units) for units in (units_of(row), Units()))
    if ours is None or free is None:
        return [*head, *[""] * 4, f"mean {mean}: nothing fits", ""]
    theirs = published(row, problem)
    seconds = [show_s(theirs.step_s) if theirs else "not on the grid", show_s(ours.step_s)]
    return [*head, str(ours), str(steps_between(problem, ours, _theirs(row))), *seconds, f"mean {mean}", str(free)]


def main() -> int:
    """Print what the planner chooses for each row of benchmarks/measured, or of the files that are named."""
    from benchmarks.forecast.__main__ import MEASURED, read

    for path in [Path(each) for each in sys.argv[1:]] or [MEASURED / "async_splits.csv"]:
        print(text(read(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
