"""The weights that generate responses: a model by name, or those that a run has left, with what the run says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.errors import ModelError, RunFolderError, UsageError, nearest
from flowgraph.files.untrusted import json_as
from flowgraph.models.folders import read_config
from flowgraph.models.heads import declared
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.runtime.record.run_folder import RunFolder
from flowgraph.serialize.graph import FlatGraph


@dataclass(frozen=True)
class ModelUnderTest:
    """A language model that responds; of a run's model also the settings and the data of that run."""

    name: str
    source: ModelSource
    param: str = ""
    step: int | None = None
    """Steps of training that the weights have seen; None where nothing says."""
    seed: int = 0
    data: str | None = None
    digest: str = ""
    """SHA-256 of the rows of the run's data."""
    by: str | None = None
    max_tokens: int | None = None


def named_model(text: str | None, verb: str) -> str:
    """Refuse a command line that names no model."""
    if text is None:
        raise UsageError("names no model and no run", where=verb, hint=f"flowgraph {verb} runs/grpo-1, or tiny")
    return text


def model_under_test(text: str, param: str | None, cache: Path | None) -> ModelUnderTest:
    """Find what a text names: a run's folder with saved weights, else a model as `--model` takes it.

    `param` says which of a run's models. Raises RunFolderError for a run without weights, UsageError where it is not
    said which of several.
    """
    path = Path(text).expanduser() if text else None
    if path is not None and (path / "run.json").is_file():
        return _of_run(RunFolder.open(path), param, cache_folder(cache))
    if path is not None and path.suffix == ".parquet" and path.is_file():
        raise UsageError("is a file of responses, not a model", where=text, hint=f"--generations {text}")
    if param is not None:
        raise UsageError(f"{text} is a model, not a run", where=f"--param {param}", hint="leave it out")
    source = resolve(text, cache=cache_folder(cache))
    return ModelUnderTest(source.name, source)


def _of_run(run: RunFolder, param: str | None, cache: Path) -> ModelUnderTest:
    facts = run.facts()
    chosen = _chosen(run, facts, param)
    settings = _settings(run)
    asked = {node: values for kind in ("generate", "refill") for node, values in settings if node == kind}
    scored = next((values for node, values in settings if node in ("score", "refill")), {})
    by, most = scored.get("by"), next(iter(asked.values()), {}).get("max_tokens")
    return ModelUnderTest(
        name=str(run.path / "weights" / chosen),
        source=resolve(str((run.path / "weights" / chosen).absolute()), cache=cache),
        param=chosen,
        step=int(facts["steps_done"]),
        seed=int(facts.get("seed", 0)),
        data=_data(run),
        digest=str(facts["data"].get("digest", "")) if isinstance(facts["data"], dict) else "",
        by=by if isinstance(by, str) else None,
        max_tokens=most if isinstance(most, int) else None,
    )


def _chosen(run: RunFolder, facts: dict[str, Any], param: str | None) -> str:
    """Name the language model of a run that is meant."""
    folder = run.path / "weights"
    there = (
        sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if folder.is_dir()
        else []
    )
    if not there:
        what = f"has no saved weights: it is {facts['status']} after {facts['steps_done']} of {facts['steps']} steps"
        saves = "a run saves its weights at its end, or when it is stopped"
        resumes = f"`flowgraph resume {run.path}` goes on with it to its end"
        raise RunFolderError(what, where=str(run.path), hint=resumes if (run.path / "checkpoints").is_dir() else saves)
    talks = [name for name in there if _draws(folder / name)]
    if param is not None and param not in there:
        raise UsageError(f"{run.path} has no weights of `{param}`", where="--param", hint=nearest(param, talks))
    if param is not None and param not in talks:
        raise ModelError.unusable(folder / param, "is not a causal language model, so it cannot generate responses")
    if param is None and len(talks) != 1:
        has = f"has the weights of {len(talks)} language models{': ' if talks else ''}{', '.join(talks)}"
        raise UsageError(has, where=str(run.path), hint=f"--param {talks[0]}" if talks else "")
    return param or talks[0]


def _draws(folder: Path) -> bool:
    return declared(read_config(folder)) == "tokens"


def _settings(run: RunFolder) -> list[tuple[str, dict[str, Any]]]:
    """Return each node of a run's flow by the name of its op, with its settings."""
    try:
        found = json_as(FlatGraph, run.text("graph.json"))  # not the graph itself: its flow's file may be gone
    except ValueError as error:
        raise RunFolderError.cannot(str(run.path / "graph.json"), error) from error
    return [(node.op.rpartition(":")[2], node.settings) for node in found.nodes]


def _data(run: RunFolder) -> str | None:
    """Return what `--data` was, as the run's settings say it."""
    named = [each["value"] for each in run.settings() if each["name"] == "run.data"]
    return str(named[0]) if named else None
