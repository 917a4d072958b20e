"""Constants of an engine, by version: each with the bounds that a calibration may move it in, and its source.

They lie in `engines/ENGINE.toml`. Not here: numbers of a device (`device_profiles`), and the fitting of these
(`calibration.fit_constants`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from flowgraph.errors import UnknownNameError

HOST: Final = "host"


FOLDER = Path(__file__).with_name("engines")
C = TypeVar("C", bound="EngineConstants")


@dataclass(frozen=True)
class ConstantBounds:
    """A constant as shipped: its value, what a calibration may move it between, and where it is from."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class EngineConstants:
    """Numbers of one engine; a subclass names them, each a float, in SI units."""

    def moved(self, values: Mapping[str, float]) -> Self:
        """Return the same with other values for some; raises UnknownNameError for a name that is none of its."""
        for name in values:
            if name not in constant_names(type(self)):
                raise UnknownNameError.of("constant", name, constant_names(type(self)))
        return replace(self, **values)


def constant_names(kind: type[EngineConstants]) -> tuple[str, ...]:
    """Name the constants of a kind."""
    return tuple(field.name for field in fields(kind))


def constants(kind: type[C], engine: str, version: str = "") -> C:
    """Read the constants of an engine; those of the newest version unless one is named.

    Raises UnknownNameError for an engine or a version that has none.
    """
    return kind(**{name: each.value for name, each in bounds(engine, version).items() if name in constant_names(kind)})


def bounds(engine: str, version: str = "") -> Mapping[str, ConstantBounds]:
    """Return the constants of an engine with their bounds; a version says only what differs from the one before it."""
    tables = _tables(engine)
    names = [each["version"] for each in tables]
    if version and version not in names:
        raise UnknownNameError.of(f"version of {engine}", version, names)
    last = names.index(version) if version else len(names) - 1
    return {name: ConstantBounds(**each) for table in tables[: last + 1] for name, each in table["constants"].items()}


def engines() -> tuple[str, ...]:
    """Name the engines that have constants."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def _tables(engine: str) -> list[dict[str, Any]]:
    if engine not in engines():
        raise UnknownNameError.of("engine", engine, engines())
    tables: list[dict[str, Any]] = tomllib.loads((FOLDER / f"{engine}.toml").read_text("utf-8"))["release"]
    return tables


@dataclass(frozen=True)
class ServingConstants(EngineConstants):
    """What an inference engine adds to the arithmetic of a model, and keeps of a device's memory.

    step_s: of a step, whatever is in it: scheduling, sampling, sending tokens.
    layer_s: of each layer in a step: starts and small kernels.
    row_s: of each running sequence in a step.
    request_s: of each request once: tokenizing, scheduling, what its prefill waits for.
    expert_layer_s: what a layer with experts adds: routing and sorting.
    expert_exchange_s: what it adds where whole experts lie on several devices.
    expert_share: what products of experts attain, of what dense products of the precision do.
    expert_read_share: the rate at which weights of experts are read, of that of dense weights.
    rollout_step_s: of a step, what it adds that a training framework drives the engine and reads log-probs.
    rollout_joined_s: what it adds to such a step that a replica's ranks are processes which are told of each step.
    fixed_bytes: of each device, whatever the model: context, graphs, buffers.
    joint_bytes: of each device that talks to others: buffers of collectives.
    inside: 1 if these bytes lie in the share of memory that the engine is given, 0 if they lie beside it.
    most_rows: the most sequences that run at a time on a replica.
    """

    step_s: float
    layer_s: float
    row_s: float
    request_s: float
    expert_layer_s: float
    expert_exchange_s: float
    expert_share: float
    expert_read_share: float
    rollout_step_s: float
    rollout_joined_s: float
    fixed_bytes: float
    joint_bytes: float
    inside: float
    most_rows: float


@dataclass(frozen=True)
class TrainingConstants(EngineConstants):
    """What an engine attains and adds when it trains.

    matmul_share: of the rate at which products run alone, what they attain between other kernels.
    attention_share: of the device's peak, what attention attains, counting the pairs that the mask leaves.
    attention_flops: the most that its kernels do in a second on any device; a later generation's they do not use.
    score_bytes: bytes moved for an attention score in a forward pass; 0 for kernels that keep scores to themselves.
    traffic: how often what a layer keeps for its backward pass is moved in a forward pass.
    replicated: 1 if each rank of tensor parallelism does all norms and residuals, 0 if ranks share them.
    logit_bytes: bytes moved for a logit, a third of them forward and the rest backward.
    launch_s: what the host takes to launch one pass of one layer that has both attention and an MLP.
    expert_launch_s: what it takes besides in a layer with experts: routing, sorting, counts that it waits for.
    call_s: what one collective adds to that.
    step_s: what an optimizer step takes besides.
    exposed: the part of transfers inside a layer and between stages that products do not hide.
    overlap: of the shorter of a pass and a transfer between data ranks, the part in which both go on.
    gradient_bytes: of a number of the gradient, as data ranks exchange it.
    ring: 1 if keys and values go around the ranks of a sequence, 0 if these trade tokens for heads (Ulysses).
    chunks: pieces of a pipeline stage, between which micro-batches take turns.
    """

    matmul_share: float
    attention_share: float
    attention_flops: float
    score_bytes: float
    traffic: float
    replicated: float
    logit_bytes: float
    launch_s: float
    expert_launch_s: float
    call_s: float
    step_s: float
    exposed: float
    overlap: float
    gradient_bytes: float
    ring: float
    chunks: float


@dataclass(frozen=True)
class HostConstants(EngineConstants):
    """What the host takes: `call_s` for each task, `score_row_s` to score a row by a rule, and what else it works on.

    A host node takes `row_s` for each row and `token_s` for each token that it reads or makes. Values travel at
    `arrow_bytes_per_s` into and out of Arrow tables. `driver_share` of a step's seconds pass between it and the next.
    `slowed_share` is how much sharing a pool slows training. Of the rates that an engine attains in pre-training, its
    log-prob passes have `forward_share` in a step of RL, and its updates `update_share`: rows are of all lengths, and
    what is read out goes through the host.
    """

    driver_share: float
    call_s: float
    score_row_s: float
    row_s: float
    token_s: float
    arrow_bytes_per_s: float
    slowed_share: float
    forward_share: float
    update_share: float


def host_constants(moved: Mapping[str, float] | None = None) -> HostConstants:
    """Return the constants of host work, those of `moved` in place of the shipped ones."""
    return constants(HostConstants, HOST).moved(moved or {})
