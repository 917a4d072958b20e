"""Check a program against the laws of the lowered stage, after its last pass or after an earlier one."""

from __future__ import annotations

from flowgraph.language import laws
from flowgraph.lowering.program import Program

STAGES = (
    "place_nodes",
    "fuse_host_nodes",
    "insert_syncs",
    "insert_transfers",
    "project_columns",
    "stream_groups",
    "take_groups",
    "order_by_longest_path",
    "insert_switches",
    "pipeline_steps",
)


def check_program(program: Program) -> None:
    """Raise LawError for the first law of the lowered stage that `program`, the result of all passes, breaks."""
    laws.check("lowered", program)


def check_after(name: str, program: Program) -> None:
    """Raise LawError for the first law that `program` breaks, of those that hold after the pass `name` of `STAGES`."""
    passed = STAGES[: STAGES.index(name) + 1]
    for law in laws.laws()["lowered"]:
        for error in law.breaches(program) if law.since in passed else ():
            raise error
