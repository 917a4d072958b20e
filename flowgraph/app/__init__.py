"""What you ask for, as functions that return data and print nothing: the Python API, and what the command line calls.

Names are imported when they are first used, so that `import flowgraph` loads none of them.
"""

# ruff: noqa: I001 - the names of a module stand on its line
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowgraph.app.calls.plan_calls import (
        calibrate as calibrate,
        check as check,
        compare as compare,
        draw as draw,
        explain as explain,
        export as export,
        import_run as import_run,
        plan as plan,
        simulate as simulate,
    )
    from flowgraph.app.calls.run_calls import (
        evaluate as evaluate,
        generate as generate,
        resume as resume,
        rollouts as rollouts,
        run as run,
    )
    from flowgraph.app.data_sets import listed_data as listed_data
    from flowgraph.app.data_sets import make_data as make_data
    from flowgraph.app.drawing.draw_target import DrawTarget as DrawTarget, find_target as find_target
    from flowgraph.app.drawing.make_drawing import (
        ComparedTargets as ComparedTargets,
        DrawResult as DrawResult,
        compare_targets as compare_targets,
        make_drawing as make_drawing,
    )
    from flowgraph.app.drawing.pictures import PictureDetail as PictureDetail
    from flowgraph.app.drawing.stages import (
        FlowFacts as FlowFacts,
        FlowStage as FlowStage,
        compared_stages as compared_stages,
        flow_facts as flow_facts,
    )
    from flowgraph.app.interop.exporting import ExportResult as ExportResult, export_plan as export_plan
    from flowgraph.app.interop.importing import ImportResult as ImportResult, import_command as import_command
    from flowgraph.app.machine import (
        engine_facts as engine_facts,
        install_engine as install_engine,
        listed_models as listed_models,
        machine_facts as machine_facts,
    )
    from flowgraph.app.planning.calibrating import calibrate_runs as calibrate_runs, calibration_of as calibration_of
    from flowgraph.app.planning.checking import CheckResult as CheckResult, check_flow as check_flow
    from flowgraph.app.planning.flow_inputs import cache_folder as cache_folder
    from flowgraph.app.planning.make_plan import make_plan as make_plan, measured_plan as measured_plan
    from flowgraph.app.planning.plan_result import PlanResult as PlanResult, read_plan as read_plan
    from flowgraph.app.planning.saved_plans import (
        CheckedPlan as CheckedPlan,
        ComparedPlans as ComparedPlans,
        ExplainedPlan as ExplainedPlan,
        SimulatedPlan as SimulatedPlan,
        check_plan_file as check_plan_file,
        compare_plans as compare_plans,
        explain_plan as explain_plan,
        simulate_plan as simulate_plan,
    )
    from flowgraph.app.request import (
        FlowLike as FlowLike,
        Request as Request,
        Say as Say,
        fields as fields,
        make_request as make_request,
    )
    from flowgraph.app.responses.evaluating import EvalResult as EvalResult, evaluate_request as evaluate_request
    from flowgraph.app.responses.rollout_rows import (
        RolloutRow as RolloutRow,
        RolloutRows as RolloutRows,
        rollout_rows as rollout_rows,
    )
    from flowgraph.app.responses.rollouts_page import PAGE_ROWS as PAGE_ROWS, rollouts_page as rollouts_page
    from flowgraph.app.responses.sampling import GenerateResult as GenerateResult, generate_request as generate_request
    from flowgraph.app.running.resuming import resume_run as resume_run
    from flowgraph.app.running.run_report import (
        RunReport as RunReport,
        RunTrace as RunTrace,
        TaskComparison as TaskComparison,
        list_runs as list_runs,
        read_trace as read_trace,
        report_run as report_run,
    )
    from flowgraph.app.running.training import Observers as Observers, RunResult as RunResult, run_flow as run_flow

_MODULES = {
    "calls.plan_calls": "calibrate check compare draw explain export import_run plan simulate",
    "calls.run_calls": "evaluate generate resume rollouts run",
    "data_sets": "listed_data make_data",
    "drawing.draw_target": "DrawTarget find_target",
    "drawing.make_drawing": "ComparedTargets DrawResult compare_targets make_drawing",
    "drawing.pictures": "PictureDetail",
    "drawing.stages": "FlowFacts FlowStage compared_stages flow_facts",
    "interop.exporting": "ExportResult export_plan",
    "interop.importing": "ImportResult import_command",
    "machine": "engine_facts install_engine listed_models machine_facts",
    "planning.calibrating": "calibrate_runs calibration_of",
    "planning.checking": "CheckResult check_flow",
    "planning.flow_inputs": "cache_folder",
    "planning.make_plan": "make_plan measured_plan",
    "planning.plan_result": "PlanResult read_plan",
    "planning.saved_plans": "CheckedPlan ComparedPlans ExplainedPlan SimulatedPlan "
    "check_plan_file compare_plans explain_plan simulate_plan",
    "request": "FlowLike Request Say fields make_request",
    "responses.evaluating": "EvalResult evaluate_request",
    "responses.rollout_rows": "RolloutRow RolloutRows rollout_rows",
    "responses.rollouts_page": "PAGE_ROWS rollouts_page",
    "responses.sampling": "GenerateResult generate_request",
    "running.resuming": "resume_run",
    "running.run_report": "RunReport RunTrace TaskComparison list_runs read_trace report_run",
    "running.training": "Observers RunResult run_flow",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
