"""Micro-batches of another system's run at the lengths that its rows have, and the lengths at which it fits.

A run says how long its rows may be, not how long they are; a budget of many tokens, or of many rows, is seldom full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.analysis.roles import Role
    from flowgraph.cluster.plan import Layout, RoleSettings
    from nodes.interop import Imported
    from placements import PlanningProblem

PARTS = (2, 4, 8, 16)  # of the longest rows, the lengths at which a run is tried that does not fit with the longest


@dataclass(frozen=True)
class ShorterLengths:
    """Lengths of prompts and responses, shorter than a run allows, in tokens."""

    prompt: int
    response: int

    def __str__(self) -> str:
        return f"--prompt-tokens {self.prompt} --response-tokens {self.response}"


def micro_batch_tokens(
    setting: PlanningProblem, role: Role, layout: Layout, running: RoleSettings, rows: int | None
) -> int | None:
    """Return the tokens that go through at once: no more than a rank has in a minibatch, and never less than a row.

    `rows` are those of a budget that counts rows without their padding, None for one that counts tokens.
    """
    told, loads = running.micro_batch_tokens, setting.loads_of(role)
    if told is None or role.use == "sample" or not loads:
        return told
    longest = max(load.longest_tokens for load in loads)
    if rows is not None:
        told = ceil(rows * max(load.row_tokens for load in loads))
    updates = [load for load in loads if load.phase == "update"]
    ranks = layout.data
    local = max(load.tokens.tokens / max(1, load.steps // load.epochs) / ranks for load in updates or loads)
    return max(longest, min(told, ceil(local)))


def as_long_as_its_rows(setting: PlanningProblem, read: Imported) -> Imported:
    """Return a run with the micro-batches that it has at the lengths of a setting."""
    roles = {role.name: role for role in setting.roles}
    running = dict(read.running)
    for name, told in read.running.items():
        layout = read.layouts.get(name)
        if name in roles and layout is not None:
            tokens = micro_batch_tokens(setting, roles[name], layout, told, read.rows_at_once.get(name))
            running[name] = told.model_copy(update={"micro_batch_tokens": tokens})
    return replace(read, running=running)


def fitting_lengths(read: Imported, fits: Callable[[ShorterLengths], bool]) -> ShorterLengths | None:
    """Return the longest rows with which a run fits, of a few parts of those that it allows; None if with none."""
    tried = (
        ShorterLengths(prompt=max(1, read.prompt_tokens // part), response=max(1, read.response_tokens // part))
        for part in PARTS
    )
    return next((each for each in tried if fits(each)), None)
