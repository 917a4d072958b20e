"""The planner's verbs, with their options; what each does is in a file of its own, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli.commands import (
    Batch,
    Cache,
    Clusters,
    Data,
    FlowName,
    Json,
    Memory,
    Models,
    Passes,
    Placement,
    PlanFile,
    Sets,
    Verify,
    every,
)
from flowgraph.cli.eval_commands import app

__all__ = ["app"]

PromptTokens = Annotated[
    str | None,
    typer.Option("--prompt-tokens", help="lengths: 512, mean=1k,p99=4k, or FILE.parquet:COLUMN", metavar="TOKENS"),
]
ResponseTokens = Annotated[
    str | None,
    typer.Option("--response-tokens", help="lengths: mean=2k,p99=16k; default the flow's max_tokens", metavar="TOKENS"),
]
Engines = Annotated[
    list[str] | None, typer.Option("--engine", help="train=megatron, sample=vllm", metavar="USE=ENGINE")
]
SamplingPrecision = Annotated[
    str | None, typer.Option("--precision", help="of weights that draw: bfloat16, fp8, fp4", metavar="PRECISION")
]
Profile = Annotated[
    Path | None, typer.Option("--profile", help="constants of engines that you set", metavar="PROFILE.toml")
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="scales of seconds, from `calibrate`", metavar="CALIBRATION.json")
]
Search = Annotated[str, typer.Option("--search", help="auto, exact or greedy")]
Objective = Annotated[str, typer.Option("--objective", help="step: the fastest; cost: a step's; devices: the fewest")]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", help="roles of one name share a pool: policy.sample=pool0", metavar="ROLE=POOL"),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        help="length.p99=16k, prompt.mean=1k, batch=1024, network=400Gbps (of each whole machine), staleness=1, "
        "ratio=3:1, precision=fp8, devices=4x8xh200",
        metavar="CHANGE",
    ),
]
Staleness = Annotated[
    str | None,
    typer.Option("--staleness", help="updates that what draws may lag, or auto: the least that pays", metavar="N|auto"),
]
Ratio = Annotated[
    str | None, typer.Option("--ratio", help="devices that draw to those that train, if apart: 3:1", metavar="G:T")
]
Streamed = Annotated[
    bool, typer.Option("--streamed", help="draw across steps: where weights may lag, no step waits for its longest row")
]
Robust = Annotated[
    bool, typer.Option("--robust", help="prefer the plan that loses least if costs are other than forecast")
]
Top = Annotated[int, typer.Option("--top", min=1, help="how many plans to show")]
MeasuredSeconds = Annotated[
    list[str] | None,
    typer.Option("--measured", help="what a node of the plan that ran took; `step`: all", metavar="NODE=SECONDS"),
]
MeasuredOn = Annotated[
    Path | None,
    typer.Option("--measured-on", help="the plan that --measured is of; default --plan", metavar="PLAN.json"),
]


@app.command()
def plan(
    flow: FlowName,
    model: Models = None,
    data: Data = None,
    batch: Batch = None,
    sets: Sets = None,
    cluster: Clusters = None,
    plan: PlanFile = None,
    memory: Memory = None,
    prompt_tokens: PromptTokens = None,
    response_tokens: ResponseTokens = None,
    engine: Engines = None,
    precision: SamplingPrecision = None,
    profile: Profile = None,
    calibration: CalibrationFile = None,
    measured: MeasuredSeconds = None,
    measured_on: MeasuredOn = None,
    search: Search = "auto",
    objective: Objective = "step",
    placement: Placement = None,
    pin: Pins = None,
    top: Top = 5,
    what_if: WhatIf = None,
    robust: Robust = False,
    staleness: Staleness = None,
    ratio: Ratio = None,
    streamed: Streamed = False,
    passes: Passes = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here, to edit")] = None,
    cache: Cache = None,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Say what runs where, the memory it needs and, on devices whose speed is known, how long a step takes."""
    from flowgraph.cli.calibration import asked_calibration
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan import measured_plan, plan_flow
    from flowgraph.cli.plan_result import PlanTarget, SearchChoices
    from flowgraph.cli.planning_request import PlanRequest
    from flowgraph.passes.verify import verified

    asked = FlowRequest(flow, every(model), data, None, batch, None, 0, every(sets), every(passes), cache)
    scales = asked_calibration(calibration, every(measured), measured_plan(plan, measured_on, every(measured)))
    machine = every(engine), precision, profile, memory
    question = PlanRequest(asked, cluster or "", prompt_tokens, response_tokens, *machine, calibration=scales)
    late = staleness or "", ratio or "", streamed
    sought = SearchChoices(objective, search, placement or "", every(pin), top, every(what_if), robust, *late)
    with verified(verify):
        plan_flow(question, sought, PlanTarget(cluster, plan, memory, placement=placement), out, json)


PlanPath = Annotated[Path, typer.Argument(help="a plan's file, from `plan -o`", metavar="PLAN.json")]


@app.command()
def fit(
    flow: FlowName,
    model: Models = None,
    batch: Batch = None,
    sets: Sets = None,
    cluster: Annotated[str, typer.Option("--cluster", help="the most there is: 16x8xh100")] = "16x8xh100",
    prompt_tokens: PromptTokens = None,
    response_tokens: ResponseTokens = None,
    engine: Engines = None,
    precision: SamplingPrecision = None,
    profile: Profile = None,
    calibration: CalibrationFile = None,
    placement: Placement = None,
    pin: Pins = None,
    passes: Passes = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Find the fewest devices of a cluster on which a flow fits."""
    from flowgraph.cli.calibration import asked_calibration
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan_result import SearchChoices
    from flowgraph.cli.planning_request import PlanRequest
    from flowgraph.cli.plans import fit as fit_flow

    asked = FlowRequest(flow, every(model), None, None, batch, None, 0, every(sets), every(passes), cache)
    lengths, scales = (prompt_tokens, response_tokens), asked_calibration(calibration, (), None)
    question = PlanRequest(asked, cluster, *lengths, every(engine), precision, profile, calibration=scales)
    fit_flow(question, SearchChoices(placement=placement or "", pins=every(pin)), out, json)


@app.command()
def explain(
    plan: PlanPath,
    role: Annotated[str | None, typer.Argument(help="policy.sample; none: every role", metavar="ROLE")] = None,
    json: Json = False,
) -> None:
    """Say why each role is where it is, and what a step would take with it elsewhere."""
    from flowgraph.cli.plans import explain as explain_plan

    explain_plan(plan, role, json)


@app.command()
def compare(
    plans: Annotated[list[Path], typer.Argument(help="plans' files", metavar="PLAN.json ...")],
    json: Json = False,
) -> None:
    """Print plans beside each other."""
    from flowgraph.cli.plans import compare as compare_plans

    compare_plans(plans, json)


@app.command()
def simulate(
    plan: PlanPath,
    steps: Annotated[int, typer.Option("--steps", min=1, max=1000, help="how many steps")] = 2,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="write a Chrome trace here, for ui.perfetto.dev")
    ] = None,
    json: Json = False,
) -> None:
    """Play the steps of a plan without a GPU: when each pool works, and what it waits for."""
    from flowgraph.cli.plans import simulate as simulate_plan

    simulate_plan(plan, steps, out, json)


@app.command()
def calibrate(
    runs: Annotated[
        list[Path],
        typer.Argument(help="folders of runs, logs or traces of --plan, or one plan's file", metavar="RUN ..."),
    ],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="the plan of the runs whose logs or traces are read", metavar="PLAN.json"),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option("--measured", help="what a node of the plan took; `step`: all of it", metavar="NODE=SECONDS"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="write the scales here, for `plan --calibration`")
    ] = None,
    json: Json = False,
) -> None:
    """Fit scales to the seconds that runs have measured, by phase, role and device, each with its 90% interval.

    A run is a folder of ours; with --plan, a log of verl (console or JSON lines), metrics of NeMo RL (JSON), or a
    Chrome trace with the plan's nodes.
    """
    from flowgraph.cli.calibration import calibrate as calibrate_runs

    calibrate_runs(runs, plan, every(measured), out, json)


@app.command("export")
def export_command(
    plan: PlanPath,
    to: Annotated[str, typer.Option("--to", help="verl, openrlhf or nemo-rl", metavar="SYSTEM")],
    version: Annotated[str, typer.Option("--version", help="of the system; default the newest that is known")] = "",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="a folder for the files; default stdout")] = None,
    json: Json = False,
) -> None:
    """Write a plan as the flags and files that another system starts from, and say what it cannot express."""
    from flowgraph.cli.interop import export_plan

    export_plan(plan, to, version, out, json)


@app.command("import")
def import_command(
    command: Annotated[
        Path, typer.Argument(help="a launch script of verl or OpenRLHF, or verl's YAML", metavar="FILE")
    ],
    device: Annotated[str, typer.Option("--device", help="what its devices are")] = "h100",
    model: Models = None,
    prompt_tokens: PromptTokens = None,
    response_tokens: ResponseTokens = None,
    profile: Profile = None,
    calibration: CalibrationFile = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="write the plan here")] = None,
    found: Annotated[Path | None, typer.Option("--found", help="write what a search finds instead here")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Read another system's run as a flow and a plan: its memory, its step, and what a search finds instead."""
    from flowgraph.cli.calibration import asked_calibration
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.interop import import_run
    from flowgraph.cli.planning_request import PlanRequest

    asked = FlowRequest("", models=every(model), cache=cache)
    scales = asked_calibration(calibration, (), None)
    question = PlanRequest(asked, "", prompt_tokens, response_tokens, (), None, profile, calibration=scales)
    import_run(command, device, question, out, json, found)
