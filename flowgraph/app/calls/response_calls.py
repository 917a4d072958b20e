"""`evaluate` and `generate`, as functions of Python."""

from __future__ import annotations

from typing import Literal

from flowgraph.app.calls.arguments import Names, PathLike, Runtime, Settings, arguments, request_of, subject_of
from flowgraph.app.planning.plan_result import PlanLike
from flowgraph.app.request import Say, fields
from flowgraph.app.responses.evaluating import EvalResult, evaluate_request
from flowgraph.app.responses.generating import GenerateResult, generate_request
from flowgraph.app.responses.sampling import Progress, no_progress
from flowgraph.app.running.training import RunResult, silent


def evaluate(
    model: PathLike | RunResult | None = None,
    *,
    generations: PathLike | None = None,
    by: str | None = None,
    n: int = 1,
    temperature: float | None = None,
    data: str | None = None,
    held_out: str | None = None,
    split: Literal["held-out", "train"] | None = None,
    rows: int | None = None,
    max_tokens: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
    param: str | None = None,
    settings: Settings | None = None,
    sample_rows: int | None = None,
    cluster: str | None = None,
    memory: str | None = None,
    plan: PlanLike | None = None,
    runtime: Runtime | None = None,
    address: str | None = None,
    threads: int | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    cache: PathLike | None = None,
    say: Say = silent,
    progress: Progress = no_progress,
) -> EvalResult:
    """Score a model's or a run's responses to held-out prompts: mean, pass@k, lengths.

    Args:
        model: a model, or a run's folder.
        generations: a file of responses to score again, in place of a model.
        by: the rule that scores: its name, `"path.py:name"`, or `"data"`.
        n: responses to each prompt.
        temperature: of the sampler; 0 is greedy, the default for one response.
        data, held_out, split, rows: the prompts; by default the held-out ones of the run's data.
        max_tokens: the longest response in tokens.
        batch: prompts at once.
        seed: the random seed; by default that of the run.
        param: which of a run's models.
        settings: settings of the nodes that sample and score.
        sample_rows, cluster, memory, plan, runtime, address, threads, cache: as for `run`.
        out: a file for the responses with their scores (`.parquet`) or for the figures (`.json`).
        overwrite: replace the file if it exists.
        say: receives notes as they arise.
        progress: shows how far it is.

    Raises:
        UsageError: arguments that contradict each other.
        RuleError: a rule that cannot be used.
        DataError: rows that lack what the rule compares with.
    """
    values = fields(locals(), but="model say progress")
    with arguments():
        request = request_of(**values, subject=subject_of(model))
        return evaluate_request(request, say, progress)


def generate(
    model: PathLike | RunResult,
    prompt: Names | None = None,
    *,
    n: int = 1,
    temperature: float = 1.0,
    data: str | None = None,
    held_out: str | None = None,
    split: Literal["held-out", "train"] | None = None,
    rows: int | None = None,
    max_tokens: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
    param: str | None = None,
    settings: Settings | None = None,
    sample_rows: int | None = None,
    cluster: str | None = None,
    memory: str | None = None,
    plan: PlanLike | None = None,
    runtime: Runtime | None = None,
    address: str | None = None,
    threads: int | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    cache: PathLike | None = None,
    say: Say = silent,
    progress: Progress = no_progress,
) -> GenerateResult:
    """Return a model's or a run's responses to prompts; those of a data set go into the Parquet file `out`.

    `prompt` is one text or several; the other arguments are those of `evaluate`.

    Raises:
        UsageError: neither a prompt nor a file to write, or arguments that contradict each other.
    """
    values = fields(locals(), but="model say progress")
    with arguments():
        request = request_of(**values, subject=subject_of(model))
        return generate_request(request, say, progress)
