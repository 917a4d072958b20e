"""Constants of an engine by version, each with its source and the bounds within which a calibration may move it.

They are in the engine's folder, `flowgraph/engines/ENGINE/constants.toml`; those of the host are in `host.toml`.
Not here: numbers of a device (`device_profiles`), and the fitting of these (`calibration.fit_constants`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from flowgraph.engines import table
from flowgraph.errors import UnknownNameError

HOST: Final = "host"

FILES = {path.parent.name: path for path in Path(table.__file__).parent.glob("*/constants.toml")} | {
    HOST: Path(__file__).with_name(f"{HOST}.toml")
}
C = TypeVar("C", bound="EngineConstants")


@dataclass(frozen=True)
class ConstantBounds:
    """A shipped constant: its value, the bounds within which a calibration may move it, and its source."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class EngineConstants:
    """The constants of one engine, in SI units; the fields of a subclass are their names, each a float.

    `about` says in errors what the constants of a subclass are for.
    """

    about: ClassVar[str]

    def moved(self, values: Mapping[str, float]) -> Self:
        """Return a copy with the constants in `values` replaced. Raises UnknownNameError for an unknown constant."""
        for name in values:
            if name not in constant_names(type(self)):
                raise UnknownNameError.of("constant", name, constant_names(type(self)))
        return replace(self, **values)


def constant_names(kind: type[EngineConstants]) -> tuple[str, ...]:
    """Return the names of the constants of a class of constants, in the order of its fields."""
    return tuple(field.name for field in fields(kind))


def constants(kind: type[C], engine: str, version: str = "") -> C:
    """Return the constants of an engine version, as an instance of `kind`; `version` "" means the newest.

    Constants of the file that are not fields of `kind` are left out. Raises UnknownNameError for an engine or a version
    without constants, and if the engine lacks a constant of `kind`.
    """
    values, names = bounds(engine, version), constant_names(kind)
    if lacking := [name for name in names if name not in values]:
        hint = f"add them to flowgraph/engines/{engine}/constants.toml"
        raise UnknownNameError(f"the engine `{engine}` lacks {kind.about}: {', '.join(lacking)}", hint=hint)
    return kind(**{name: values[name].value for name in names})


def bounds(engine: str, version: str = "") -> Mapping[str, ConstantBounds]:
    """Return each constant of an engine version by name, with its value, bounds and source.

    `version` "" means the newest. A version has the constants of all earlier versions, except those that its own entry
    in the file replaces. Raises UnknownNameError for an engine or a version without constants.
    """
    tables = _tables(engine)
    names = [table["version"] for table in tables]
    if version and version not in names:
        raise UnknownNameError.of(f"version of {engine}", version, names)
    last = names.index(version) if version else len(names) - 1
    entries = (entry for table in tables[: last + 1] for entry in table["constants"].items())
    return {name: ConstantBounds(**constant) for name, constant in entries}


def engines() -> tuple[str, ...]:
    """Return the names of the engines that have constants, and `host`, in alphabetical order."""
    return tuple(sorted(FILES))


@cache
def _tables(engine: str) -> list[dict[str, Any]]:
    if engine not in engines():
        if engine in table.ENGINES:
            hint = f"write flowgraph/engines/{engine}/constants.toml, as those of the other engines"
            raise UnknownNameError(f"the engine `{engine}` has no constants, so it cannot be planned", hint=hint)
        raise UnknownNameError.of("engine", engine, engines())
    tables: list[dict[str, Any]] = tomllib.loads(FILES[engine].read_text("utf-8"))["release"]
    return tables


@dataclass(frozen=True)
class ServingConstants(EngineConstants):
    """The overhead of an inference engine: seconds in addition to a model's arithmetic, and reserved device memory.

    step_s: seconds of a step, whatever its rows: scheduling, sampling, sending tokens.
    layer_s: seconds of each layer in a step: launches and small kernels.
    row_s: seconds of each running sequence in a step.
    request_s: seconds of each request once: tokenizing, scheduling, and waiting for its prefill.
    expert_layer_s: seconds added by a layer with experts: routing and sorting.
    expert_exchange_s: seconds added by such a layer if whole experts are on several devices.
    expert_share: the rate of products of experts, relative to dense products of the same precision.
    expert_read_share: the rate at which weights of experts are read, relative to dense weights.
    rollout_step_s: seconds added to a step if a training framework drives the engine and reads log-probs.
    rollout_joined_s: seconds added to such a step if a replica's ranks are processes, each notified of every step.
    fixed_bytes: bytes on each device, whatever the model: context, graphs, buffers.
    joint_bytes: bytes on each device that communicates with others: buffers of collectives.
    inside: 1 if these bytes are included in the engine's share of memory, 0 if they are in addition to it.
    most_rows: the maximum number of sequences that run at a time on a replica.
    """

    about = "constants for generating responses"

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
    """The rates and overheads of an engine in training: fractions of peak performance, seconds and bytes.

    matmul_share: the rate of matrix products among other kernels, relative to products that run alone.
    attention_share: the rate of attention, relative to the device's peak, counting only pairs that the mask keeps.
    attention_flops: the maximum FLOPs per second of the engine's attention kernels, on any device.
    score_bytes: bytes moved for an attention score in a forward pass; 0 for kernels that keep scores in registers.
    traffic: how often a forward pass moves the bytes that a layer stores for its backward pass.
    replicated: 1 if each rank of tensor parallelism does all norms and residuals, 0 if ranks share them.
    logit_bytes: bytes moved for a logit, a third of them in the forward pass and the rest in the backward pass.
    launch_s: host seconds to launch one pass of one layer with both attention and an MLP.
    expert_launch_s: seconds added in a layer with experts: routing, sorting, and waiting for counts.
    call_s: seconds added by one collective.
    step_s: seconds added by an optimizer step.
    exposed: the share of transfers inside a layer and between stages that matrix products do not hide.
    overlap: the share of a pass or a transfer between data ranks, whichever is shorter, during which both run.
    gradient_bytes: bytes of a number of the gradient, as data ranks exchange it.
    ring: 1 if keys and values go around the ranks of a sequence, 0 if ranks trade tokens for heads (Ulysses).
    chunks: the number of model pieces in a pipeline stage, between which micro-batches alternate.
    """

    about = "constants for training"

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
    """The seconds of host work: `call_s` for each task, `score_row_s` to score a row by a rule, and other work.

    A host node takes `row_s` for each row and `token_s` for each token that it reads or returns. Values are converted
    to and from Arrow tables at `arrow_bytes_per_s`. Between two steps, `driver_share` of a step's seconds pass.
    `slowed_share` is the factor by which sharing a pool slows training. In an RL step, log-prob passes reach
    `forward_share` of the rates of pre-training, and updates `update_share`, since rows have all lengths and results
    pass through the host.
    """

    about = "constants of host work"

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
    """Return the constants of host work, with those in `moved` replaced. Raises UnknownNameError for unknown names."""
    return constants(HostConstants, HOST).moved(moved or {})
