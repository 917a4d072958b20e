"""The arguments of the Python API: their types, the request that is built from them, and errors that name them."""

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


def request_from_arguments(**values: Any) -> Request:
    """Build a `Request` from the keyword arguments of a call of the Python API.

    `values` are fields of any part of a request, by name; None means the default. A PlanResult given as `plan` is
    replaced by its plan. Raises UsageError for unknown or contradictory arguments, SettingError for invalid values.
    """
    plan = values.get("plan")
    return make_request(**values | {"plan": plan.plan if isinstance(plan, PlanResult) else plan})


def model_text(model: PathLike | RunResult | None) -> str | None:
    """Return the name of a model, or the path of a run's folder, as text; None for None.

    A run may be given as the result of `run`. Raises RunFolderError for a run that stopped before it began.
    """
    return None if model is None else str(run_folder(model))


def run_folder(run: PathLike | RunResult) -> Path:
    """Return the path of a run's folder, which is given as a path or as the result of `run`.

    Raises RunFolderError for the result of a run that stopped before it began. Whether a path is a run's folder is not
    checked.
    """
    return run.path if isinstance(run, RunResult) else Path(run)


@contextmanager
def argument_errors() -> Generator[None]:
    """Open a context in which an error that names a command-line option names the Python argument too.

    For example, `--staleness x` becomes `staleness= (--staleness x)`. A FlowError is changed in place; every error is
    raised again.
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
