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
        Law(3, "terms", "a loss is terms, each over the one mask that it takes", "laws.calls.check_op, loss.Loss"),
        Law(4, "kinds", "a value is row, row x token, scalar, model or state", "values.Kind, laws.calls.check_result"),
        Law(4, "identity", "what makes, drops or reorders rows gives their ids too", "laws.calls.check_op"),
        Law(10, "separable", "what reads all rows together stands in no loss", "laws.calls.check_region"),
    ),
    "described": (
        Law(0, "one flow", "a graph holds what its own parameters and nodes make", "laws.described.one_flow"),
        Law(1, "versions", "at most one update consumes a version of weights", "laws.described.consumed_once"),
        Law(1, "readers first", "its readers can run before that update", "laws.described.readers_come_first"),
        Law(2, "state", "state comes in and goes out, and none is lost", "laws.described.state_comes_out"),
        Law(4, "rows", "what is read row by row is of the same rows", "laws.facts.rows_agree"),
        Law(4, "makers", "a value was made by the weights that its port asks for", "laws.facts.made_as_asked"),
        Law(4, "lag", "a loss on rows of stale weights corrects for it", "laws.facts.lag_is_corrected"),
        Law(8, "temperature", "what is compared was computed at one temperature", "laws.facts.one_temperature"),
    ),
    "named": (
        Law(12, "names", "every node has a name of its own", "laws.named.every_name_once"),
        Law(3, "counts", "a loss says which masks are counted over all ranks", "laws.named.every_mask_counted"),
        Law(0, "nothing twice", "no two pure nodes compute the same", "laws.named.nothing_twice"),
        Law(0, "nothing dropped", "what nothing reads is gone, and reported", "laws.named.nothing_dropped"),
    ),
    "placed": (),
    "lowered": (),
    "run": (
        Law(5, "bodies", "a body sees padded [B, T]; ragged on the wire", "laws.calls.check_result, runtime.batch"),
        Law(6, "keys", "draws are named by seed, step, node, prompt, sample, position", "keys.Key"),
        Law(7, "micro-batches", "every rank does as many; none samples on shards", "evaluate.BoundRegion.level"),
        Law(8, "one forward", "full logits stay in the model; one pass for all", "evaluate.SharedForward"),
        Law(9, "requests", "sampling is one asynchronous request; a batch is a gather", "executors.base.Request"),
        Law(11, "two hashes", "of the structure, and of everything", "store.structure_hash, store.full_hash"),
        Law(12, "flat", "graphs travel as flat JSON, with a user's files", "store.to_json, runtime.ship.stage"),
        Law(13, "a store per pool", "the local executor runs the lowered program too", "runtime.execute.Executor"),
        Law(14, "layouts", "an executor says as data what it can run", "executors.layouts.LAYOUTS"),
    ),
}
