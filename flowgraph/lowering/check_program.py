"""Check a program: whole, or as far as the passes have come that made it."""

from __future__ import annotations

from flowgraph.language import laws
from flowgraph.lowering.program import Program

STAGES = (
    "place_nodes",
    "fuse_host_nodes",
    "insert_syncs",
    "insert_transfers",
    "project_columns",
    "order_by_longest_path",
    "insert_switches",
)


def check_program(program: Program) -> None:
    """Raise LawError for the first law of the lowered stage that a program breaks."""
    laws.check("lowered", program)


def check_after(name: str, program: Program) -> None:
    """Raise LawError for the first law that a program breaks of those that hold after the pass of this name."""
    reached = STAGES[: STAGES.index(name) + 1]
    for law in laws.laws()["lowered"]:
        for error in law.breaches(program) if law.since in reached else ():
            raise error
