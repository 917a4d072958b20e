"""Why a role is where it is, as text, and plans beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.cluster import show_bytes
from flowgraph.plan import Plan
from placements.finding import TIED_SHARE
from placements.found_text import Played, show_s, why_slower
from placements.moves import Move, Other
from placements.text import table


def moves_text(role: str, home: Sequence[str], here: Played, moved: Sequence[Move]) -> str:
    """Print what a step would take with a role elsewhere, the best first; `home` are the roles of its pool."""
    beside = [name for name in home if name != role]
    where = f"shares a pool with {', '.join(beside)}" if beside else "has a pool of its own"
    lines = [f"{role} {where}: {show_s(here.step_s)} a step"]
    known = sorted((each for each in moved if each.ranked is not None), key=_step_s)
    rows = [_move(here, each) for each in known]
    rows += [[_place(each), "does not fit", "", ""] for each in moved if each.ranked is None]
    return "\n".join([*lines, *table(rows)])


def _step_s(move: Move) -> float:
    return move.ranked.step_s if move.ranked is not None else float("inf")


def _place(move: Move) -> str:
    return f"with {'+'.join(move.beside)}" if move.beside else "alone"


def _move(here: Played, move: Move) -> list[str]:
    there = move.ranked
    assert there is not None, "those that do not fit are told apart"
    change = there.step_s / here.step_s - 1
    near = "a tie" if change > -TIED_SHARE else "better than this plan"
    why = why_slower(there, here) if change > TIED_SHARE else near
    why += f", on {there.devices} devices" if there.devices != here.devices else ""
    return [_place(move), show_s(there.step_s), f"{change:+.1%}", why]


def fastest_text(here: Played, best: Played | None) -> str:
    """Say what the same pools take at their fastest, `best`; nothing where the plan is as fast."""
    if best is None or best.step_s > here.step_s * (1 - 5e-4):
        return ""
    faster = f"{show_s(best.step_s)}, {best.step_s / here.step_s - 1:+.1%}, on {best.devices} devices"
    return f"a step of this plan takes {show_s(here.step_s)}; the same pools at their fastest {faster}"


def layouts_text(role: str, found: Sequence[Other], devices: int) -> str:
    """Print the layouts that a role could have on its pool."""
    rows = [
        [
            f"{each.choice.layout}",
            show_s(sum(each.choice.stages_s)),
            f"{show_bytes(each.choice.peak_bytes)} at work",
            str(each.choice.running),
        ]
        for each in found
    ]
    return "\n".join([f"{role} on its {devices} devices, each layout at its fastest", *table(rows)])


def plans_text(named: Sequence[tuple[str, Plan]]) -> str:
    """Print plans beside each other: what a step takes, by task, and the fullest device of each pool."""
    rows = [["", *(name for name, _ in named)], *_rows([plan for _, plan in named])]
    return "\n".join(line[2:] for line in table(rows))


def _rows(plans: Sequence[Plan]) -> Iterator[list[str]]:
    yield ["flow", *(plan.flow for plan in plans)]
    yield ["a step", *(show_s(plan.step.period_s if plan.step else None) for plan in plans)]
    yield ["devices", *(str(sum(len(pool.devices) for pool in plan.pools)) for plan in plans)]
    if any(cost_per_step(plan) is not None for plan in plans):
        yield [
            "a step costs",
            *("unknown" if (cost := cost_per_step(plan)) is None else f"{cost:,.2f}" for plan in plans),
        ]
    names = list(dict.fromkeys(task.name for plan in plans if plan.step for task in plan.step.tasks))
    for name in names:
        yield [f"  {name}", *(_seconds(plan, name) for plan in plans)]
    for role in dict.fromkeys(each.role for plan in plans for each in plan.placed):
        yield [role, *(_home(plan, role) for plan in plans)]
    yield ["fullest device", *(_fullest(plan) for plan in plans)]


def cost_per_step(plan: Plan) -> float | None:
    """Give what a step costs by the prices of its machines, in their currency; None if one is not known.

    A device costs its share of its machine.
    """
    if plan.step is None or plan.step.period_s is None:
        return None
    nodes = {node.name: node for node in plan.cluster.nodes}
    used = [nodes[name] for pool in plan.pools for name, _ in pool.devices]
    prices = [node.price_per_hour / len(node.devices) for node in used if node.price_per_hour is not None]
    return plan.step.period_s / 3600 * sum(prices) if len(prices) == len(used) else None


def _seconds(plan: Plan, name: str) -> str:
    found = [task for task in plan.step.tasks if task.name == name] if plan.step else []
    return f"{show_s(found[0].seconds)} {'+'.join(found[0].pools)}" if found else "-"


def _home(plan: Plan, role: str) -> str:
    found = [each for each in plan.placed if each.role == role]
    return f"{found[0].pool} {found[0].engine} {found[0].layout}" if found else "-"


def _fullest(plan: Plan) -> str:
    peaks = [(peak.memory_bytes, each.pool, peak.role) for each in plan.forecast for peak in each.peaks]
    if not peaks:
        return "-"
    most, pool, role = max(peaks)
    return f"{show_bytes(most)} on {pool}, {role}"
