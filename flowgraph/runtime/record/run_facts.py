"""The required contents of files in a run's folder: `run.json`, `settings.json`, `metrics.jsonl`.

Other keys are accepted with any value, because other versions of flowgraph write other keys.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, RootModel, ValidationError

from flowgraph.cluster.cluster import dotted
from flowgraph.cluster.plan import MOST_THREADS

_OfAPath = Annotated[str, Field(pattern=r"^[^\x00]+$")]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class DataFacts(_Open):
    """The data of a run: its name, the hash of its contents, and the hashes of the files it was read from."""

    name: str
    digest: str = ""
    files: dict[str, str] = Field(default={})


class MetricFacts(_Open):
    """A metric that a node declares: its unit, and whether reports show it among the main ones (`headline`)."""

    headline: bool = False
    unit: str = ""


class ModelFacts(_Open):
    """A model that a run loaded: its name."""

    name: str


class RunFacts(_Open):
    """`run.json`: the flow and data of the run, its progress, and its metrics."""

    flow: str
    metrics: dict[str, MetricFacts]
    status: str
    steps: NonNegativeInt
    steps_done: NonNegativeInt
    data: DataFacts
    models: dict[str, ModelFacts] = Field(default={})
    started: str = ""
    seed: NonNegativeInt = 0
    resumed: list[dict[str, Any]] = Field(default=[])


class ResumableRun(RunFacts):
    """`run.json` of a run that can be resumed; it also has the run's options, folder and runtime."""

    id: str
    file: _OfAPath
    flow_sha256: str
    folder: _OfAPath
    full_hash: str
    structure_hash: str
    runtime: str
    threads: Annotated[int, Field(gt=0, le=MOST_THREADS)]
    batch: PositiveInt
    options: dict[str, Any]


class RunStateModel(_Open):
    """A model of a run at a checkpoint: its name, and the hash of the weights that were loaded."""

    name: str = ""
    digest: str = ""


class JournalState(_Open):
    """A journal of the run's folder at a checkpoint: its size in bytes, and its SHA-256."""

    size_bytes: NonNegativeInt
    sha256: str


class RunState(_Open):
    """`state.json` of a checkpoint: the progress of the run, and its models and software.

    If steps overlap, `overlap` says how, and `begun` is the number of steps that have begun.
    """

    steps_done: NonNegativeInt = 0
    begun: NonNegativeInt = 0
    overlap: str = ""
    records: dict[str, JournalState] = Field(default={})
    software: dict[str, str] = Field(default={})
    models: dict[str, RunStateModel] = Field(default={})


class BestFacts(_Open):
    """`best.json` of a run's checkpoints: the steps of the best one, and the metric that decides, with its value."""

    steps: NonNegativeInt
    metric: str
    value: float


class SettingFacts(_Open):
    """One entry of `settings.json`: the name and value of a setting."""

    name: str
    value: Any


class SettingsFacts(RootModel[list[SettingFacts]]):
    """The content of `settings.json`: a list of settings."""


class StepTimes(_Open):
    """The seconds of a step and of each node; if steps overlap, each pool's idle share, and how long it waited."""

    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    nodes_s: dict[str, float] = Field(default={})
    idle: dict[str, float] = Field(default={})
    waited_s: dict[str, float] = Field(default={})


WARNINGS = "warnings"
"""What the name of a metric begins with that says that a training warning holds: `warnings.NAME` is then 1."""


def is_warning(metric: str) -> bool:
    """Return whether a metric says that a training warning holds.

    >>> is_warning("warnings.no_signal"), is_warning("group_normalize.no_signal")
    (True, False)
    """
    return metric.startswith(f"{WARNINGS}.")


class MetricsLine(_Open):
    """One line of `metrics.jsonl`: a step, its numbers by name, and its seconds. A number may be NaN."""

    __pydantic_extra__: dict[str, float] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    step: NonNegativeInt
    time: StepTimes = StepTimes()


def schema_fault(kind: type[BaseModel], data: Any) -> str:
    """Return the first mismatch between `data` and a pydantic model as text with its path; "" if the data is valid.

    >>> schema_fault(DataFacts, {"digest": "0"}), schema_fault(DataFacts, {"name": "digits"})
    ('lacks `name`', '')
    """
    try:
        kind.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        path = dotted(fault["loc"])
        return f"lacks `{path}`" if fault["type"] == "missing" else f"{path}: {fault['msg']}".removeprefix(": ")
    return ""
