"""Python functions that plan, check, draw, export, import, explain, compare, simulate and calibrate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from flowgraph.app.calls.arguments import (
    ColumnNames,
    DataSets,
    Method,
    Models,
    Names,
    Objective,
    PathLike,
    PictureName,
    Settings,
    System,
    argument_errors,
    request_from_arguments,
    run_folder,
)
from flowgraph.app.drawing.draw_target import find_target, plan_target, refuse_flow_options
from flowgraph.app.drawing.make_drawing import DrawResult, draw_result
from flowgraph.app.drawing.pictures import PictureDetail, refuse_unknown_picture
from flowgraph.app.interop.exporting import ExportResult, export_plan
from flowgraph.app.interop.importing import ImportResult, import_command
from flowgraph.app.planning.calibrating import calibrate_runs, calibration_of
from flowgraph.app.planning.checking import CheckResult, check_flow
from flowgraph.app.planning.make_plan import make_plan, measured_plan
from flowgraph.app.planning.plan_result import PlanLike, PlanResult
from flowgraph.app.planning.saved_plans import (
    ComparedPlans,
    ExplainedPlan,
    SimulatedPlan,
    compare_plans,
    explain_plan,
    simulate_plan,
)
from flowgraph.app.request import FlowLike, Say, fields
from flowgraph.app.running.training import RunResult, silent
from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.plan import Contract, Plan
from placements import calibration as fits


def plan(
    flow: FlowLike,
    *,
    model: Models | None = None,
    data: DataSets | None = None,
    columns: ColumnNames | None = None,
    batch: int | None = None,
    prompt_tokens: str | int | None = None,
    response_tokens: str | int | None = None,
    settings: Settings | None = None,
    passes: Names | None = None,
    cluster: str | None = None,
    memory: str | None = None,
    placement: str | None = None,
    plan: PlanLike | None = None,
    depth: int | None = None,
    sync_every: int | None = None,
    chunks: int | None = None,
    contract: Contract | None = None,
    engine: Mapping[str, str] | Names | None = None,
    precision: str | None = None,
    constants: PathLike | None = None,
    calibration: Calibration | PathLike | None = None,
    measured: Mapping[str, float] | Names | None = None,
    measured_on: PathLike | None = None,
    objective: Objective = "step",
    method: Method = "auto",
    pin: Mapping[str, str] | Names | None = None,
    what_if: Names | None = None,
    robust: bool = False,
    staleness: int | Literal["auto"] | None = None,
    ratio: str | tuple[int, int] | None = None,
    streamed: bool = False,
    cache: PathLike | None = None,
    say: Say = silent,
) -> PlanResult:
    """Search for the best plan of a flow, or forecast a given `plan` again; return the plan with its forecast.

    The plan has the devices and memory of each role (one use of one model, such as `policy.train`) and, on devices of
    known speed, the seconds of a step.

    Args:
        flow: a shipped flow (`"grpo"`), one in a file (`"my.py:name"`), or a flow itself.
        model: the trained model, or models by parameter: a name, a folder or a hub id, with `+lora=RANK` for adapters.
        data: a data set, file or folder, or several; without one, devices of a known kind are planned with lengths of
            rows.
        columns: columns to read by other names: `{"prompt": "problem"}`.
        batch: prompts in a step; by default 256 for lengths of rows, what is known for the data, or else 16.
        prompt_tokens: prompt lengths in tokens: `512`, `"mean=1k,p99=4k"` or `"FILE.parquet:COLUMN"`; by default 512,
            or an estimate of the longest prompt if rows are read.
        response_tokens: response lengths in tokens; by default the longest that the flow allows.
        settings: settings of the flow and its nodes by name.
        passes: additional passes, run last: `"my.py:name"`; the file is imported.
        cluster: a cluster such as `"2x8xh100"` or a `.toml` file; by default this machine.
        memory: the memory of this machine to plan for, such as `"2GiB"`.
        placement: a named placement, such as `"split"`.
        plan: a plan to forecast again, instead of a search.
        depth: how many steps sampling works ahead of training.
        sync_every: copy the trained weights to sampling every this many steps.
        chunks: in how many chunks the responses of a step are read, as they finish.
        contract: what a sync does to responses under way: `scheduled` waits for them, `in_flight` does not; with
            `ready`, it does not either, and a step trains on the groups that have finished.
        engine: the engine for each use: `{"train": "megatron", "sample": "vllm"}`.
        precision: the precision of the weights that generate responses: bfloat16, fp8 or fp4.
        constants: a file with constants of engines, which replace the built-in ones.
        calibration: scales of forecast seconds, or a file of them.
        measured: measured seconds by node of a plan, `"step"` for a whole step; they calibrate the forecast.
        measured_on: the plan whose nodes were measured; by default `plan`.
        objective: what to minimize: the seconds of a step, its cost, or the number of devices.
        method: the search algorithm: auto, exact or greedy.
        pin: a pool for each role; roles with the same pool share its devices.
        what_if: changes for which to repeat the search, such as `"devices=4x8xh200"`.
        robust: prefer the plan that loses least if costs differ from the forecast.
        staleness: the maximum number of policy updates by which rollouts may lag, or `"auto"`.
        ratio: rollout devices to training devices where they are separate, such as `(3, 1)`.
        streamed: read the groups of a step while others are sampled, in as many chunks as make it shorter.
        cache: the folder for downloaded models and generated data.
        say: receives each note as a line.

    Raises:
        UsageError: arguments that contradict each other or are invalid.
        UnknownNameError, UserCodeError: a flow, pass or file that does not exist or cannot be imported.
        SettingError: a setting or a value that does not exist.
        DataError: rows that cannot be used.
        ModelError: a model that is not found, or whose sizes are not known.
        BatchError: a batch, minibatches and ranks that do not go together.
        ClusterError: a text or file that describes no cluster.
        ResourceError: nothing fits; the error names the smallest changes that do.
        PlanError: a plan that is not for this flow, or breaks a law.
    """
    values = fields(locals(), but="calibration measured measured_on say")
    with argument_errors():
        if not isinstance(calibration, Calibration):
            texts = request_from_arguments(settings=measured).workload.settings
            file = Path(plan) if isinstance(plan, str | Path) else None
            seconds_of = measured_plan(file, None if measured_on is None else Path(measured_on), texts)
            calibration = calibration_of(None if calibration is None else Path(calibration), texts, seconds_of, say)
        request = request_from_arguments(**values, calibration=calibration)
        return make_plan(request, say)


def check(
    flow: FlowLike,
    *,
    model: Models | None = None,
    data: DataSets | None = None,
    columns: ColumnNames | None = None,
    batch: int | None = None,
    settings: Settings | None = None,
    passes: Names | None = None,
    cluster: str | None = None,
    placement: str | None = None,
    plan: PlanLike | None = None,
    cache: PathLike | None = None,
    say: Say = silent,
) -> CheckResult:
    """Return the faults of a flow, its settings and its plan that can be found before models are loaded.

    The arguments are those of `plan`, but `plan` is a plan to check. Without one, a plan is searched, unless neither a
    model nor rows are known. Settings are checked only if the flow has no fault, and all else only if the settings have
    none. Faults are returned, not raised, except for an unknown flow (UnknownNameError), a flow's file that cannot be
    imported (UserCodeError), and invalid arguments (UsageError, SettingError).
    """
    values = fields(locals(), but="say")
    with argument_errors():
        request = request_from_arguments(**values)
        return check_flow(request, say)


def draw(
    what: FlowLike | Path | Plan | PlanResult | RunResult,
    *,
    picture: PictureName | None = None,
    steps: int = 2,
    unfold: bool = False,
    model: Models | None = None,
    data: DataSets | None = None,
    columns: ColumnNames | None = None,
    batch: int | None = None,
    prompt_tokens: str | int | None = None,
    response_tokens: str | int | None = None,
    settings: Settings | None = None,
    passes: Names | None = None,
    cluster: str | None = None,
    placement: str | None = None,
    plan: PlanLike | None = None,
    depth: int | None = None,
    sync_every: int | None = None,
    chunks: int | None = None,
    contract: Contract | None = None,
    cache: PathLike | None = None,
    say: Say = silent,
) -> DrawResult:
    """Return a picture of a flow, a plan or a run; notebooks display it, and `save` writes it in any format.

    Args:
        what: a flow, a plan, a run, or the file or folder of one.
        picture: the picture to draw; by default the plan, or the curves of a run; for a flow, the flow, or
            its plan if an argument for the plan is given, such as `cluster` or `depth`.
        steps: the number of steps in a timeline.
        unfold: draw each machine of a pool, however many there are.
        model, data, columns, batch, prompt_tokens, response_tokens, settings, passes, cluster, placement, plan, depth,
            sync_every, chunks, contract, cache: for a flow only, as for `plan`.
        say: receives each note as a line.

    Raises:
        UsageError: a picture that does not exist, or a flow's options for a plan, a run or a file. The result raises
            it, on first use, for a picture that cannot be drawn.
        UnknownNameError: a flow that does not exist; raised on first use.
        SettingError: fewer than one step, or an invalid argument.
        RunFolderError: a folder that is not a run folder.
        PlanError, LawError, DataError: a JSON file that is not a valid plan, program or picture.
    """
    values = fields(locals(), but="what picture steps unfold say")
    with argument_errors():
        flow = str(run_folder(what)) if isinstance(what, Path | RunResult) else what
        request = request_from_arguments(**values, flow="" if isinstance(flow, Plan | PlanResult) else flow)
        if picture is not None:
            refuse_unknown_picture(picture)
        if isinstance(what, Plan | PlanResult):
            name = f"plan of {what.flow}" if isinstance(what, Plan) else what.plan.flow
            refuse_flow_options(request, "a plan", name)
            target = plan_target(what, name, say)
        else:
            target = find_target(request, say)
        return draw_result(target, picture or "", PictureDetail(steps=steps, unfold=unfold))


def export(plan: PlanLike, to: System, *, version: str = "") -> ExportResult:
    """Return a plan as the flags and files of another system, with notes on what that system cannot express.

    Nothing is written; `save` of the result does that. `version` is the version of the system, "" for the newest known
    one. If the plan does not fit as that system runs it, the files have another layout that fits, if one is found; a
    note says what was changed, or that nothing fits. Raises UnknownNameError for an unknown system or version,
    UsageError for a flow that trains no policy on its own responses, and PlanError, for example, for a plan that does
    not record its flow and models, or with a role that does not use its whole pool.
    """
    with argument_errors():
        return export_plan(plan, to, version)


def import_run(
    command: PathLike,
    *,
    device: str = "h100",
    model: Models | None = None,
    prompt_tokens: str | int | None = None,
    response_tokens: str | int | None = None,
    constants: PathLike | None = None,
    calibration: Calibration | None = None,
    cache: PathLike | None = None,
) -> ImportResult:
    """Read another system's run as a plan, forecast the run's memory and step time, and search for a faster plan.

    `command` is the path of a launch script of verl or OpenRLHF, or of verl's YAML; nothing in it is run. `device` is
    the type of the run's devices. `model` replaces models of the run: `PARAM=MODEL`, or a name for the policy.
    `prompt_tokens` and `response_tokens` are by default the maximum lengths of the run. `constants`, `calibration` and
    `cache` are as for `plan`, but a calibration cannot be a file.

    The result has the run as a plan, the reasons why it does not fit, if any, and the fastest plan found for its
    devices that the system can run, which may be slower than the run; None if there is none. Raises, for example,
    DataError, with the line if it is known, for a file that cannot be read as a run, UsageError for a device whose
    speed is not known, and ModelError for a model whose sizes are not known.
    """
    values = fields(locals(), but="command device")
    with argument_errors():
        request = request_from_arguments(**values)
        return import_command(Path(command), device, request)


def explain(plan: PlanLike, role: str | None = None) -> ExplainedPlan:
    """Return, for each role of a plan, the forecast seconds of a step with that role on each other pool.

    A role is one use of one model, such as `policy.train`; one that shares its pool is also tried on a pool of its own.
    With `role`, only that role is explained, and its layouts are compared too. The plans with the roles elsewhere are
    searched when the result is read. Raises UsageError for an unknown role, PlanError, for example, for a plan that
    does not record its flow or whose seconds are not known, and ResourceError for a role that cannot run as placed.
    """
    with argument_errors():
        return explain_plan(plan, role)


def compare(*plans: PlanLike) -> ComparedPlans:
    """Return plans to compare: `text()` of the result is a table, and `data()` has each plan as JSON data by its name.

    Plans are named by their paths. If any plan is not given by path, each name begins with the plan's number instead,
    such as `1: a.json` or `2: plan of grpo`. Raises UsageError for fewer than two plans, and PlanError for a file that
    holds no plan and for a broken plan.
    """
    with argument_errors():
        return compare_plans(plans)


def simulate(plan: PlanLike, steps: int = 2) -> SimulatedPlan:
    """Simulate `steps` steps of a plan, without a GPU, and return when each pool works and what it waits for.

    Raises ValueError for fewer than one step, and PlanError for a file that holds no plan, for a broken plan, and for
    one whose seconds are not known.
    """
    with argument_errors():
        return simulate_plan(plan, steps)


def calibrate(
    *runs: PathLike,
    plan: PathLike | None = None,
    measured: Mapping[str, float] | Names | None = None,
    say: Say = silent,
) -> fits.CalibrationResult:
    """Fit scales of the forecast to measured seconds; return the scales by phase, role and device, with 90% intervals.

    `runs` are run folders, logs or traces of runs of `plan`, or the file of one plan with its `measured` seconds by
    node. `say` receives each note as a line. Raises UsageError, for example, for `measured` with several paths or with
    a name for which the plan forecasts no seconds; DataError, for example, for a log without a timer of the plan's
    nodes; PlanError for a plan that forecasts no seconds; and RunFolderError for a folder that is not a run folder.
    """
    with argument_errors():
        texts = request_from_arguments(settings=measured).workload.settings
        return calibrate_runs(list(map(Path, runs)), None if plan is None else Path(plan), texts, say)
