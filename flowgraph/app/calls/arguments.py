"""The arguments of the Python API: their types, the request of them, and errors in their words."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from flowgraph.app.planning.plan_result import PlanResult
from flowgraph.app.request import OPTIONS, Request, make_request
from flowgraph.app.running.training import RunResult
from flowgraph.errors import FlowError

Models = str | Sequence[str] | Mapping[str, str]
"""A model of the trained parameter, `PARAM=MODEL` texts, or models by parameter."""
Settings = Mapping[str, object] | Sequence[str]
"""Settings of a flow and its nodes by name, such as `{"policy.generate.n": 16}`."""
DataSets = str | Path | Sequence[str | Path | tuple[str, float]] | Mapping[str, float]
"""A data set, several, or several by weight: `{"a.parquet": 0.7, "b.parquet": 0.3}`."""
ColumnNames = Mapping[str, str] | Sequence[str]
"""The columns to read by other names: `{"prompt": "problem", "answer": "solution"}`."""
Names = str | Sequence[str]
PathLike = str | Path
Objective = Literal["step", "cost", "devices"]
Method = Literal["auto", "exact", "greedy"]
Runtime = Literal["local", "ray"]
System = Literal["verl", "openrlhf", "nemo-rl"]
PictureName = Literal["flow", "plan", "sequence", "timeline", "memory", "placements", "search", "run"]


def request_of(**values: Any) -> Request:
    """Return the request of these arguments; a PlanResult as `plan` is replaced by its plan."""
    plan = values.get("plan")
    return make_request(**values | {"plan": plan.plan if isinstance(plan, PlanResult) else plan})


def subject_of(model: PathLike | RunResult | None) -> str | None:
    """Return the name of a model, or the folder of a run, as text; None for None."""
    return None if model is None else str(folder_of(model))


def folder_of(run: PathLike | RunResult) -> Path:
    """Return the folder of a run, given as a path or as the result of `run`."""
    return run.path if isinstance(run, RunResult) else Path(run)


@contextmanager
def arguments() -> Generator[None]:
    """Open a context in which errors that name a command-line option name the Python argument too.

    `--staleness x` becomes `staleness= (--staleness x)`.
    """
    try:
        yield
    except FlowError as error:
        option, _, rest = error.where.partition(" ")
        if option.startswith("--"):
            names = {value: name for name, value in OPTIONS.items()}
            name = names.get(option, option.removeprefix("--").replace("-", "_"))
            error.where = f"{name}= ({f'{option} {rest}'.strip()})"
        raise
