"""Find the weights that generate responses: a model by name, or the saved weights of a run with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.app.request import Request, Workload, make_request, saved_request
from flowgraph.errors import FlowError, ModelError, RunFolderError, UsageError, nearest
from flowgraph.files.untrusted import json_as
from flowgraph.models.folders import read_config
from flowgraph.models.heads import declared_head
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.runtime.record.run_folder import RunFolder
from flowgraph.serialize.graph import FlatGraph


@dataclass(frozen=True)
class ModelUnderTest:
    """A language model to sample from; for a run's model, also the seed, data, rule and lengths of that run.

    `by` is the run's scoring rule, and `max_tokens` the maximum number of tokens of its responses; None if not known.
    """

    name: str
    source: ModelSource
    param: str = ""
    step: int | None = None
    """Steps of training that the weights have seen; None where nothing says."""
    seed: int = 0
    workload: Workload = field(default_factory=Workload)
    """The run's data and held-out sets, its columns, and its longest prompts."""
    digest: str = ""
    """SHA-256 of the rows of the run's data."""
    by: str | None = None
    max_tokens: int | None = None


def model_under_test(request: Request, verb: str) -> ModelUnderTest:
    """Return the model that a request samples from: the saved weights of a run's folder, or a model by name.

    `verb` is the name of the command in errors. Raises UsageError if no model is named, for a file of responses, for
    `param` with a model that is not a run's or with an unknown parameter, and if a run has several language models and
    none is chosen; RunFolderError for a run without weights or whose files cannot be read; ModelError for a model that
    is not found or is not a language model.
    """
    text, param, cache = request.sampling.subject, request.sampling.param, cache_folder(request.workload.cache)
    if text is None:
        raise UsageError("names neither a model nor a run", where=verb, hint=f"flowgraph {verb} runs/grpo-1, or tiny")
    path = Path(text).expanduser() if text else None
    if path is not None and (path / "run.json").is_file():
        return _of_run(RunFolder.open(path), param, cache)
    if path is not None and path.suffix == ".parquet" and path.is_file():
        raise UsageError("is a file of responses, not a model", where=text, hint=f"--generations {text}")
    if param is not None:
        raise UsageError(f"{text} is a model, not a run", where=f"--param {param}", hint="leave it out")
    source = resolve(text, cache=cache)
    return ModelUnderTest(source.name, source)


def _of_run(run: RunFolder, param: str | None, cache: Path) -> ModelUnderTest:
    facts, data = run.facts(), run.facts()["data"]
    chosen = _chosen(run, facts, param)
    folder = run.path / "weights" / chosen
    try:
        graph = json_as(FlatGraph, run.text("graph.json"))  # not the graph itself: its flow's file may be gone
    except ValueError as error:
        raise RunFolderError.cannot(str(run.path / "graph.json"), error) from error
    settings = [(node.op.rpartition(":")[2], node.settings) for node in graph.nodes]
    samplers = {op: values for kind in ("generate", "refill") for op, values in settings if op == kind}
    max_tokens = next(iter(samplers.values()), {}).get("max_tokens")
    rule = next((values for op, values in settings if op in ("score", "refill")), {}).get("by")
    return ModelUnderTest(
        name=str(folder),
        source=resolve(str(folder.absolute()), cache=cache),
        param=chosen,
        step=int(facts["steps_done"]),
        seed=int(facts.get("seed", 0)),
        workload=_workload(run, facts),
        digest=str(data.get("digest", "")) if isinstance(data, dict) else "",
        by=rule if isinstance(rule, str) else None,
        max_tokens=max_tokens if isinstance(max_tokens, int) else None,
    )


def _workload(run: RunFolder, facts: Mapping[str, Any]) -> Workload:
    data = next((setting["value"] for setting in run.settings() if setting["name"] == "run.data"), ())
    try:
        saved = saved_request(facts.get("options", {})).workload
    except (ValueError, FlowError):
        saved = Workload()
    names = ("held_out", "columns", "max_prompt_tokens", "long_prompts")
    return make_request(data=data, **{name: getattr(saved, name) for name in names}).workload


def _chosen(run: RunFolder, facts: Mapping[str, Any], param: str | None) -> str:
    folder = run.path / "weights"
    names = sorted(path.name for path in folder.glob("[!.]*") if path.is_dir())
    if not names:
        what = f"has no saved weights: it is {facts['status']} after {facts['steps_done']} of {facts['steps']} steps"
        hint = "a run saves its weights at its end, or when it is stopped"
        if (run.path / "checkpoints").is_dir():
            hint = f"`flowgraph resume {run.path}` continues it to its end"
        raise RunFolderError(what, where=str(run.path), hint=hint)
    language_models = [name for name in names if declared_head(read_config(folder / name)) == "tokens"]
    if param is None:
        if len(language_models) == 1:
            return language_models[0]
        what = f"has the weights of {len(language_models)} language models"
        what += f": {', '.join(language_models)}" if language_models else ""
        raise UsageError(what, where=str(run.path), hint=f"--param {language_models[0]}" if language_models else "")
    if param not in names:
        hint = nearest(param, language_models)
        raise UsageError(f"{run.path} has no weights of `{param}`", where="--param", hint=hint)
    if param not in language_models:
        raise ModelError.unusable(folder / param, "is not a causal language model, so it cannot generate responses")
    return param
