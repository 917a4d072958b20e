"""The Python functions `run`, `resume`, `rollouts`, `evaluate` and `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from flowgraph.app.calls.arguments import (
    ColumnNames,
    DataSets,
    Models,
    Names,
    PathLike,
    Runtime,
    Settings,
    argument_errors,
    model_text,
    request_from_arguments,
    run_folder,
)
from flowgraph.app.planning.plan_result import PlanLike
from flowgraph.app.request import FlowLike, LongPrompts, Say, fields
from flowgraph.app.responses.evaluating import EvalResult, evaluate_request
from flowgraph.app.responses.rollout_rows import RolloutRows, rollout_rows
from flowgraph.app.responses.sampling import GenerateResult, Progress, generate_request, no_progress
from flowgraph.app.running.resuming import resume_run
from flowgraph.app.running.training import Observers, RunResult, run_flow, silent
from flowgraph.cluster.plan import Contract

if TYPE_CHECKING:
    from flowgraph.runtime.driver import Listener


def run(
    flow: FlowLike = "",
    *,
    model: Models | None = None,
    data: DataSets | None = None,
    held_out: DataSets | None = None,
    columns: ColumnNames | None = None,
    max_prompt_tokens: int | None = None,
    long_prompts: LongPrompts | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    passes: Names | None = None,
    eval_every: int | None = None,
    eval_rows: int | None = None,
    eval_n: int | None = None,
    eval_temperature: float | None = None,
    out: PathLike | None = None,
    checkpoint_every: int | None = None,
    keep: int | None = None,
    keep_best: str | None = None,
    record_tokens: int | None = None,
    warnings: str | None = None,
    replay: PathLike | None = None,
    sample_rows: int | None = None,
    forward_tokens: int | None = None,
    cluster: str | None = None,
    memory: str | None = None,
    placement: str | None = None,
    plan: PlanLike | None = None,
    depth: int | None = None,
    sync_every: int | None = None,
    chunks: int | None = None,
    contract: Contract | None = None,
    runtime: Runtime | None = None,
    address: str | None = None,
    threads: int | None = None,
    log: str | None = None,
    profile: str | int | None = None,
    attach: PathLike | None = None,
    cache: PathLike | None = None,
    listeners: Sequence[Listener] = (),
    say: Say = silent,
) -> RunResult:
    """Train a flow by its plan, record the run in a folder, and return how the run ended.

    The first Ctrl-C stops after the current step, a second one at once; the status is then "interrupted".

    Args:
        flow: as for `plan`; with `plan`, by default the flow that it was made for.
        model: as for `plan`; a tiny model by default.
        data: a data set, file or folder, or several, also with weights, which are shares of the prompts; `digits` by
            default.
        held_out: a file or data set of held-out rows, or several.
        max_prompt_tokens: the maximum number of tokens of a prompt, chat template included.
        long_prompts: what becomes of a longer prompt: it is refused (default), dropped, or truncated.
        steps: the number of steps; by default what is known for the model, or else 100.
        epochs: how many times to read the rows, instead of `steps`.
        batch: prompts in a step; by default what is known for the data, or else 16.
        seed: the random seed; by default 0.
        eval_every: check held-out prompts every this many steps, by default 20; 0: never.
        eval_rows: the maximum number of held-out prompts of a check (200), equally many of each `data_source`.
        eval_n: the number of responses to each held-out prompt, for pass@k and maj@k; by default 1.
        eval_temperature: the temperature of these responses; by default 0 (greedy) for one response, otherwise 1.
        out: the run's folder; by default `runs/FLOW-N`.
        checkpoint_every: write a checkpoint for `resume` every this many steps, by default 50; 0: never.
        keep: the number of newest checkpoints to keep on disk; by default 2.
        keep_best: also keep the checkpoint with the highest value of this metric: `"eval/accuracy"`, `"eval/SOURCE"`.
        record_tokens: the number of responses of each step whose values of tokens are recorded; by default 256.
        warnings: the training warnings to give: `"all"` (default), `"none"`, names (`"no_signal,all_cut"`), or names to
            leave out (`"-all_cut"`).
        replay: the folder of a run whose recorded rollouts are used instead of new ones.
        sample_rows: the number of responses that a rank decodes together; by default 256.
        forward_tokens: the number of padded tokens in a pass without gradients; by default 4,096.
        columns, settings, passes, cluster, memory, placement, depth, sync_every, chunks, contract, cache: as for
            `plan`.
        plan: the plan to run, instead of a search.
        runtime: `"local"` (this process) or `"ray"`; by default local for a plan with one device.
        address: the address of a running Ray cluster.
        threads: the number of threads of each process.
        log: trackers that also receive the metrics: `"tensorboard,wandb"`.
        profile: the steps to profile, from 0: `"3,7"`.
        attach: a file that lists running servers of engines.
        listeners: receive the results of each step, and of each check of held-out data.
        say: receives each note as a line.

    Raises:
        UsageError: arguments that contradict each other, or a flow that Ray's workers cannot find.
        UnknownNameError, UserCodeError: a flow, pass or file that does not exist or cannot be imported.
        SettingError: a setting or a value that does not exist.
        DataError, RuleError: rows that cannot be used or scored.
        ModelError: a model that is not found or cannot be loaded.
        PlanError, BatchError: a plan that is not for this flow, or a batch that does not suit the plan.
        ResourceError: no plan fits, or the plan needs more than this machine has.
        RunFolderError: a folder that already exists.
        WorkerError: a process that failed; `resume` continues a run that has a checkpoint.
    """
    values = fields(locals(), but="listeners say")
    with argument_errors():
        request = request_from_arguments(**values)
        return result_or_error(run_flow(request, Observers(say=say, listeners=listeners)))


def resume(
    run: PathLike | RunResult,
    *,
    flow: FlowLike | None = None,
    steps: int | None = None,
    cluster: str | None = None,
    memory: str | None = None,
    placement: str | None = None,
    plan: PlanLike | None = None,
    depth: int | None = None,
    sync_every: int | None = None,
    chunks: int | None = None,
    contract: Contract | None = None,
    runtime: Runtime | None = None,
    address: str | None = None,
    threads: int | None = None,
    listeners: Sequence[Listener] = (),
    say: Say = silent,
) -> RunResult:
    """Continue a run from its newest checkpoint, and return how the run ended.

    A run without a checkpoint starts again; a finished run is not continued unless `steps` is larger.

    Args:
        run: the run's folder, or the result of `run`.
        flow: the run's flow, if it is in no file.
        steps: the total number of steps; by default that of the run.
        cluster, memory, placement, plan, depth, sync_every, chunks, contract, runtime, address, threads: where and how
            to continue, as for `run`; by default as the run did.
        listeners: receive the results of each step.
        say: receives each note as a line.

    Raises:
        NotResumableError: the flow, rows or weights have changed since the run began.
        RunFolderError: a folder that is not a run folder, or that another process uses.
        UsageError: fewer steps than are done, or arguments that contradict each other.
        PlanError, ResourceError: a plan that does not suit the run or this machine.
        WorkerError: a process that failed; `resume` continues the run again.
    """
    values = fields(locals(), but="run listeners say")
    with argument_errors():
        request = request_from_arguments(**values)
        return result_or_error(resume_run(run_folder(run), request, Observers(say=say, listeners=listeners)))


def rollouts(
    run: PathLike | RunResult,
    *,
    step: int | None = None,
    node: str | None = None,
    sort: str | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> RolloutRows:
    """Return recorded responses of one step of a run, with their scores and the recorded values of their tokens.

    Args:
        run: the run's folder, or the result of `run`.
        step: the step, from 0; by default the last recorded one.
        node: the node that sampled the responses, or `"validation"` for those to held-out prompts; by default the
            first node by name.
        sort: the column to sort by; with `-` in front, the highest value comes first.
        where: a condition on columns: `'score<0.5 and data_source="math"'`.
        limit: the maximum number of rows to return; by default 10.

    Raises:
        UsageError: a step, node or column that does not exist, or an invalid condition.
        RunFolderError: a folder that is not a run folder, or without recorded responses.
        DataError: a file of the run that is damaged.
    """
    with argument_errors():
        return rollout_rows(run_folder(run), step=step, node=node, sort=sort, where=where, limit=limit)


def result_or_error(result: RunResult) -> RunResult:
    """Return the result of a run; raise the result's `error` instead if the run failed."""
    if result.error is not None:
        raise result.error
    return result


def evaluate(
    model: PathLike | RunResult | None = None,
    *,
    generations: PathLike | None = None,
    by: str | None = None,
    n: int = 1,
    temperature: float | None = None,
    data: DataSets | None = None,
    held_out: DataSets | None = None,
    columns: ColumnNames | None = None,
    max_prompt_tokens: int | None = None,
    long_prompts: LongPrompts | None = None,
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
    """Sample and score responses of a model, or of a run's model; return their mean score, pass@k and lengths.

    With `generations`, the responses in that file are scored instead. After Ctrl-C while responses are sampled, the
    result is that of the finished prompts, and its `interrupted` is true.

    Args:
        model: a model, a run's folder, or the result of `run`.
        generations: a file of responses to score again, instead of a model.
        by: the rule that scores: its name, `"path.py:name"`, or `"data"` for the rule of each row's data source.
        n: the number of responses to each prompt.
        temperature: the temperature of sampling; by default 0 (greedy) for one response, otherwise 1.
        data, held_out, columns, max_prompt_tokens, long_prompts: as for `run`; without `data`, those that are not given
            are those of the run whose model is used.
        split: which prompts: `"held-out"`, the default where the data has such rows, or `"train"`.
        rows: the maximum number of prompts; by default all.
        max_tokens: the maximum number of tokens of a response; by default that of the run, what is known for the data
            set, or else 256.
        batch: the number of prompts to sample together.
        seed: the random seed; by default that of the run, or else 0.
        param: the parameter of a run's model, if it has several.
        settings: settings of the nodes that sample and score.
        sample_rows, cluster, memory, plan, runtime, address, threads, cache: as for `run`.
        out: a file for the responses with their scores (`.parquet`) or for the statistics (`.json`).
        overwrite: replace the file if it exists.
        say: receives each note as a line.
        progress: makes the function that receives the progress; by default none is shown.

    Raises:
        UsageError: neither a model nor a file of responses, contradictory arguments, or a file that exists.
        RuleError: a rule that cannot be used, or a row without the ground truth that the rule needs.
        DataError: rows that cannot be used.
        ModelError: a model that is not found.
        RunFolderError: a run without saved weights.
        ResourceError: a plan that needs more than this machine has.
    """
    values = fields(locals(), but="model say progress")
    with argument_errors():
        request = request_from_arguments(**values, subject=model_text(model))
        return evaluate_request(request, say, progress)


def generate(
    model: PathLike | RunResult,
    prompt: Names | None = None,
    *,
    n: int = 1,
    temperature: float = 1.0,
    data: DataSets | None = None,
    held_out: DataSets | None = None,
    columns: ColumnNames | None = None,
    max_prompt_tokens: int | None = None,
    long_prompts: LongPrompts | None = None,
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
    """Sample responses of a model, or of a run's model, to prompts; return them, or write them to a file.

    `prompt` is one text or several, whose responses are in the result's `rows`, and also in the Parquet file `out` if
    it is given. Without `prompt`, the responses to a data set are only written to `out`. `temperature` is 1 by default;
    the other arguments are those of `evaluate`. After Ctrl-C, the result has no rows, its `interrupted` is true, and
    the responses to the finished prompts are in a file with `.partial` before the suffix of `out`.

    Raises:
        UsageError: neither a prompt nor a file to write, a file that exists, or arguments that contradict each other.
        DataError: rows that cannot be used.
        ModelError: a model that is not found.
        RunFolderError: a run without saved weights.
        ResourceError: a plan that needs more than this machine has.
    """
    values = fields(locals(), but="model say progress")
    with argument_errors():
        request = request_from_arguments(**values, subject=model_text(model))
        return generate_request(request, say, progress)
