"""The laws: one table, by the stage of a graph that each is about. What holds a law is named, and found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from flowgraph.errors import FlowError

Stage = Literal["described", "named", "placed", "lowered"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True)
class Law:
    """One law: its number in the design, what it is about, what it says, and by name what holds it in `flowgraph`.

    At one of STAGES that is a function which takes what stands there, and gives an error for each breach.
    """

    number: int
    name: str
    says: str
    held_by: str


def check(stage: Stage, thing: Any, *, after: str = "") -> None:
    """Raise the first broken law of what stands at a stage; `after` is the pass that gave it."""
    for error in faults(stage, thing):
        if after:
            error.notes = (*error.notes, f"after the pass {after}")
        raise error


def faults(stage: Stage, thing: Any) -> Iterator[FlowError]:
    """Give an error for each breach of the laws of a stage: of a graph, or of a program."""
    for law in LAWS[stage]:
        yield from _holder(law.held_by)(thing)


@cache
def _holder(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"flowgraph.{module}"), name)


LAWS: Mapping[Stage | Literal["call", "run"], tuple[Law, ...]] = {
    "call": (
        Law(
            3,
            "terms",
            "a loss is terms, each over the one mask that it takes",
            "language.call_laws.check_op, language.loss.Loss",
        ),
        Law(
            4,
            "kinds",
            "a value is row, row x token, scalar, model or state",
            "language.values.Kind, language.call_laws.check_result",
        ),
        Law(4, "identity", "what makes, drops or reorders rows gives their ids too", "language.call_laws.check_op"),
        Law(10, "separable", "what reads all rows together stands in no loss", "language.call_laws.check_region"),
    ),
    "described": (
        Law(0, "one flow", "a graph holds what its own parameters and nodes make", "checks.described.one_flow"),
        Law(1, "versions", "at most one update consumes a version of weights", "checks.described.consumed_once"),
        Law(1, "readers first", "its readers can run before that update", "checks.described.readers_come_first"),
        Law(2, "state", "state comes in and goes out, and none is lost", "checks.described.state_comes_out"),
        Law(4, "rows", "what is read row by row is of the same rows", "checks.facts.rows_agree"),
        Law(4, "makers", "a value was made by the weights that its port asks for", "checks.facts.made_as_asked"),
        Law(4, "lag", "a loss on rows of stale weights corrects for it", "checks.facts.lag_is_corrected"),
        Law(
            4, "corrected", "what corrects a ratio corrects the very one it is used with", "checks.facts.corrected_once"
        ),
        Law(8, "temperature", "what is compared was computed at one temperature", "checks.facts.one_temperature"),
    ),
    "named": (
        Law(4, "ports", "what is read fits its port, and a setting its range", "checks.named.calls_fit"),
        Law(12, "names", "every node has a name of its own", "checks.named.every_name_once"),
        Law(3, "counts", "a loss says which masks are counted over all ranks", "checks.named.every_mask_counted"),
        Law(0, "nothing twice", "no two pure nodes compute the same", "checks.named.nothing_twice"),
        Law(0, "nothing dropped", "what nothing reads is gone, and reported", "checks.named.nothing_dropped"),
    ),
    "placed": (
        Law(11, "structure", "a plan is for the graph of its structure", "checks.placed.is_for_the_graph"),
        Law(0, "pools", "a pool holds devices that are there, and no other does", "checks.placed.pools_hold_devices"),
        Law(14, "layouts", "an engine says as data what it can run", "checks.placed.engines_run_their_roles"),
        Law(0, "roles", "every role is placed once", "checks.placed.every_role_once"),
        Law(1, "bounds", "a copy lags no further than the flow lets it", "checks.placed.lags_are_allowed"),
    ),
    "lowered": (
        Law(13, "reads", "what a task reads was brought to its place", "checks.lowered.reads_are_there"),
        Law(13, "weights", "weights are there in the version read", "checks.lowered.weights_are_there"),
        Law(0, "made", "what is read was made before", "checks.lowered.what_is_read_is_made"),
        Law(0, "once", "every node runs once", "checks.lowered.every_node_runs_once"),
        Law(13, "results", "results reach the host", "checks.lowered.results_reach_the_host"),
        Law(1, "in order", "readers of a version run before its update", "checks.lowered.readers_run_first"),
        Law(5, "parts", "of a record travels what is read, and all of it", "checks.lowered.parts_cover_reads"),
        Law(0, "asleep", "what sleeps steps aside for others", "checks.lowered.sleepers_step_aside"),
        Law(1, "syncs", "a sync keeps the bound of its readers", "checks.lowered.syncs_keep_the_bound"),
    ),
    "run": (
        Law(
            5,
            "bodies",
            "a body sees padded [B, T]; ragged on the wire",
            "language.call_laws.check_result, runtime.batch",
        ),
        Law(6, "keys", "draws are named by seed, step, node, prompt, sample, position", "language.keys.Key"),
        Law(7, "micro-batches", "every rank does as many; none samples on shards", "language.region.BoundRegion.level"),
        Law(8, "one forward", "full logits stay in the model; one pass for all", "language.region.SharedForward"),
        Law(9, "requests", "sampling is one asynchronous request; a batch is a gather", "language.handle.Request"),
        Law(
            11,
            "two hashes",
            "of the structure, and of everything",
            "analysis.flat_graph.structure_hash, analysis.flat_graph.full_hash",
        ),
        Law(
            12,
            "flat",
            "graphs travel as flat JSON, with a user's files",
            "analysis.flat_graph.to_json, runtime.ray.code_shipping.stage",
        ),
        Law(13, "a store per pool", "the local executor runs the lowered program too", "runtime.interpreter.Executor"),
    ),
}
