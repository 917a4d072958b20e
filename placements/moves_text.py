"""Why a role is where it is, as text, and plans beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowgraph.cluster.cluster import DeviceKind, show_bytes
from flowgraph.cluster.plan import Plan
from placements.cuts import many
from placements.finding import TIED_SHARE
from placements.footprint import fits
from placements.found_text import Played, show_s, why_slower
from placements.moves import Move, Other
from placements.step_rows import Row, step_rows
from placements.text import COLUMNS, flowing, pool_sizes, table

ABSENT = "-"  # what a plan does not have


def moves_text(role: str, home: Sequence[str], here: Played, moved: Sequence[Move]) -> str:
    """Print what a step would take with a role elsewhere, the best first; `home` are the roles of its pool."""
    beside = [name for name in home if name != role]
    where = f"shares a pool with {', '.join(beside)}" if beside else "has a pool of its own"
    lines = [f"{role} {where}: {show_s(here.step_s)} a step"]
    known = sorted((each for each in moved if each.ranked is not None), key=_step_s)
    rows = [_move(here, each) for each in known]
    rows += [[_place(each), "does not fit", "", ""] for each in moved if each.ranked is None]
    return "\n".join([*lines, *flowing(rows, "; ")])


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
    why += f", on {many(there.devices, 'device')}" if there.devices != here.devices else ""
    return [_place(move), show_s(there.step_s), f"{change:+.1%}", why]


def fastest_text(here: Played, best: Played | None) -> str:
    """Say what the same pools take at their fastest, `best`; nothing where the plan is as fast."""
    if best is None or best.step_s > here.step_s * (1 - 5e-4):
        return ""
    faster = f"{show_s(best.step_s)}, {best.step_s / here.step_s - 1:+.1%}, on {many(best.devices, 'device')}"
    return f"a step of this plan takes {show_s(here.step_s)}; the same pools at their fastest {faster}"


def layouts_text(role: str, found: Sequence[Other], devices: int) -> str:
    """Print the ways that a role could run on its pool; `→` marks the plan's own."""
    rows = [
        [
            "→" if each.own else "",
            f"{each.layout}",
            show_s(each.seconds),
            f"{show_bytes(each.peak_bytes)} at work{'' if each.fits else ': does not fit'}",
            str(each.running),
        ]
        for each in found
    ]
    head = f"{role} on its {many(devices, 'device')}: as it is (→), and each layout at its fastest that fits"
    return "\n".join([head, *flowing(rows)])


def plans_text(named: Sequence[tuple[str, Plan]], columns: int = COLUMNS) -> str:
    """Print plans beside each other: what a step takes, by task, and the fullest device of each pool.

    Plans that have no room beside each other stand below each other.
    """
    beside = table([["", *(name for name, _ in named)], *_rows([plan for _, plan in named])])
    if max(map(len, beside)) - 2 <= columns:
        return "\n".join(line[2:] for line in beside)
    return "\n\n".join("\n".join([name, *flowing(list(_rows([plan])), columns=columns)]) for name, plan in named)


def _rows(plans: Sequence[Plan]) -> Iterator[list[str]]:
    yield ["flow", *(plan.flow for plan in plans)]
    yield ["a step", *(show_s(plan.step.period_s if plan.step else None) for plan in plans)]
    yield ["devices", *(str(sum(len(pool.devices) for pool in plan.pools)) for plan in plans)]
    if any(cost_per_step(plan) is not None for plan in plans):
        yield [
            "a step costs",
            *("unknown" if (cost := cost_per_step(plan)) is None else f"{cost:,.2f}" for plan in plans),
        ]
    told = [{row.label: row for row in step_rows(plan.step)} if plan.step else {} for plan in plans]
    for label in dict.fromkeys(label for rows in told for label in rows):
        yield [f"  {label}", *(_seconds(rows.get(label)) for rows in told)]
    for role in dict.fromkeys(each.role for plan in plans for each in plan.placed):
        homes = [next((each for each in plan.placed if each.role == role), None) for plan in plans]
        heads = ["" if home is None else f"{home.pool} {home.engine}" for home in homes]
        cuts = ["" if home is None else str(home.layout) for home in homes]
        if len(plans) == 1:
            yield [role, f"{heads[0]} {cuts[0]}"]
        else:
            yield [role, *(head or ABSENT for head in heads)]
            yield ["", *cuts]
    yield ["fullest device", *(_fullest(plan) for plan in plans)]


def cost_per_step(plan: Plan) -> float | None:
    """Return what a step costs by the prices of its machines, in their currency; None if one is not known.

    A device costs its share of its machine.
    """
    if plan.step is None or plan.step.period_s is None:
        return None
    nodes = {node.name: node for node in plan.cluster.nodes}
    used = [nodes[name] for pool in plan.pools for name, _ in pool.devices]
    prices = [node.price_per_hour / len(node.devices) for node in used if node.price_per_hour is not None]
    return plan.step.period_s / 3600 * sum(prices) if len(prices) == len(used) else None


def _seconds(row: Row | None) -> str:
    if row is None:
        return ABSENT
    where = "+".join(row.pools) if len(row.tasks) == 1 else f"in {len(row.tasks)}"
    return f"{show_s(row.seconds)} {where}".strip()


def _fullest(plan: Plan) -> str:
    """Say what the fullest device of a plan holds, by its share of the device, and whether that is too much."""
    rooms = {pool.name: min(pool_sizes(plan, pool), default=0) for pool in plan.pools}
    peaks = [(peak.memory_bytes, each.pool, peak.role) for each in plan.forecast for peak in each.peaks]
    if not peaks:
        return ABSENT
    most, pool, role = max(peaks, key=lambda peak: peak[0] / rooms[peak[1]])
    devices = (plan.cluster.device(*place) for each in plan.pools if each.name == pool for place in each.devices)
    kinds: list[DeviceKind] = [device.kind for device in devices if device is not None]
    kind: DeviceKind = kinds[0] if kinds else "gpu"
    full = "" if fits(most, rooms[pool], kind) else f": does not fit, it has {show_bytes(rooms[pool])}"
    return f"{show_bytes(most)} on {pool}, {role}{full}"
