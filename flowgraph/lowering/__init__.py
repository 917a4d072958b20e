"""Lower a graph and a plan to a program: passes over programs, one per file, listed in a tuple."""

from __future__ import annotations

from collections.abc import Callable

from flowgraph.lowering.fuse_host_nodes import fuse_host_nodes
from flowgraph.lowering.insert_switches import insert_switches
from flowgraph.lowering.insert_syncs import insert_syncs
from flowgraph.lowering.insert_transfers import insert_transfers
from flowgraph.lowering.order_by_longest_path import order_by_longest_path
from flowgraph.lowering.pipeline_steps import pipeline_steps
from flowgraph.lowering.program import Program
from flowgraph.lowering.project_columns import project_columns
from flowgraph.lowering.stream_groups import stream_groups
from flowgraph.lowering.take_groups import take_groups

Pass = Callable[[Program], Program]

LOWERING: tuple[Pass, ...] = (
    fuse_host_nodes,
    insert_syncs,
    insert_transfers,
    project_columns,
    stream_groups,
    take_groups,
    order_by_longest_path,
    insert_switches,
    pipeline_steps,
)
OPTIONAL: tuple[Pass, ...] = (fuse_host_nodes, project_columns, order_by_longest_path)
"""A program runs without any of these, and gives the same."""
