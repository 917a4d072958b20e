"""The verbs, with their options; what each does is in a file of its own, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli import engines
from flowgraph.cluster.plan import MOST_PROMPTS, MOST_THREADS

app = typer.Typer(
    name="flowgraph",
    help="Write an RL algorithm as a typed function; check it, draw it, plan it, run it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(engines.app, name="engines")

FLOW = typer.Argument(help="a shipped flow (`grpo`), or one in a file (`my.py`, `my.py:name`)", metavar="FLOW")
FlowName = Annotated[str, FLOW]
Sets = Annotated[list[str] | None, typer.Option("--set", help="a setting: policy.generate.n=16", metavar="NAME=VALUE")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="tiny, smollm2-135m, a folder or a hub id, with +lora=RANK for adapters; PARAM=… for one parameter",
        metavar="[PARAM=]MODEL",
    ),
]
Cache = Annotated[Path | None, typer.Option("--cache", help="where fetched models and made data are kept")]
Memory = Annotated[
    str | None, typer.Option("--memory", help="plan for this much memory, not for what is free", metavar="2GiB")
]
Clusters = Annotated[
    str | None,
    typer.Option("--cluster", help="laptop (two CPU devices), 1xcpu, 2x8xh100, a .toml file", metavar="CLUSTER"),
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="colocated, hybrid, split or standalone, or one variant: split:openrlhf",
        metavar="PLACEMENT",
    ),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="a plan's file, from `plan -o`", metavar="PLAN.json")]
Data = Annotated[str | None, typer.Option("--data", help="digits, addition, gsm8k, rg/NAME, a file or folder, hf:ID")]
RunPath = Annotated[Path, typer.Argument(help="a run's folder", metavar="RUN")]
Batch = Annotated[int | None, typer.Option("--batch", min=1, max=MOST_PROMPTS, help="prompts in a step")]
HeldOut = Annotated[str | None, typer.Option("--held-out", help="a file of held-out rows")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="how many steps")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="names every random number of the run")]
EvalEvery = Annotated[
    int, typer.Option("--eval-every", min=0, help="check held-out prompts every so many steps; 0: never")
]
EvalRows = Annotated[int, typer.Option("--eval-rows", min=1, help="how many held-out prompts at most")]
RunOut = Annotated[Path | None, typer.Option("-o", "--out", help="the run's folder; default runs/FLOW-N")]
ReplayOf = Annotated[Path | None, typer.Option("--replay", help="use the rollouts of this run", metavar="RUN")]
SampleRows = Annotated[int, typer.Option("--sample-rows", min=1, help="responses that a rank decodes side by side")]
ForwardTokens = Annotated[
    int, typer.Option("--forward-tokens", min=1, help="padded tokens in a pass without gradients")
]
Runtime = Annotated[
    str | None, typer.Option("--runtime", help="local: this process; ray; default by the plan's devices")
]
Address = Annotated[str | None, typer.Option("--address", help="a Ray cluster that runs already")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, max=MOST_THREADS, help="threads of each process; default 1 for tiny models, else its share"
    ),
]
CheckpointEvery = Annotated[
    int, typer.Option("--checkpoint-every", min=0, help="save what `resume` needs every so many steps; 0: never")
]
Keep = Annotated[int, typer.Option("--keep", min=1, help="how many checkpoints stay")]
Log = Annotated[
    str | None, typer.Option("--log", help="tell these too: tensorboard, wandb, trackio, swanlab", metavar="A,B")
]
Profile = Annotated[str | None, typer.Option("--profile", help="profile these steps, from 0", metavar="3,7")]
Attach = Annotated[
    Path | None, typer.Option("--attach", help="engines' servers that run already", metavar="SERVERS.json")
]
Passes = Annotated[
    list[str] | None, typer.Option("--pass", help="a pass of your own, run last: my.py:name", metavar="PASS")
]
Verify = Annotated[bool, typer.Option("--verify", help="check the laws after each pass, not only after the last")]


def every(given: list[str] | None) -> tuple[str, ...]:
    """Give what an option that may be said several times was given."""
    return tuple(given or ())


@app.command()
def show(
    flow: FlowName,
    stage: Annotated[str, typer.Option("--stage", help="described, named, placed or lowered")] = "named",
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", help="compare two stages; `diff` compares flows", metavar="STAGE STAGE"),
    ] = None,
    facts: Annotated[bool, typer.Option("--facts", help="tokens and FLOPs of nodes, bytes on edges, state")] = False,
    model: Models = None,
    data: Data = None,
    batch: Batch = None,
    cluster: Clusters = None,
    placement: Placement = None,
    plan: PlanFile = None,
    sets: Sets = None,
    passes: Passes = None,
    cache: Cache = None,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Print a flow at a stage: as it was described, as its passes left it, placed by a plan, or lowered."""
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.show import ShowTarget, show_facts, show_flow
    from flowgraph.passes.verify import verified

    asked = FlowRequest(
        flow,
        tuple(model or ()),
        data,
        batch=batch,
        sets=tuple(sets or ()),
        passes=tuple(passes or ()),
        cache=cache,
    )
    where = PlanTarget(cluster, plan, placement=placement)
    with verified(verify):
        if facts:
            show_facts(asked, where, json)
        else:
            show_flow(ShowTarget(asked, stage, where), diff, json)


@app.command()
def check(
    flow: FlowName,
    model: Models = None,
    data: Data = None,
    batch: Batch = None,
    cluster: Clusters = None,
    placement: Placement = None,
    plan: PlanFile = None,
    sets: Sets = None,
    passes: Passes = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Report every fault of a flow, or of a plan in a file, that can be found before anything is loaded."""
    if flow.endswith(".json"):
        from flowgraph.cli.plans import check_file

        raise typer.Exit(check_file(Path(flow), cluster, json))
    from flowgraph.cli.check import check_flow
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan_result import PlanTarget

    asked = FlowRequest(flow, every(model), data, None, batch, None, 0, every(sets), every(passes), cache)
    raise typer.Exit(check_flow(asked, PlanTarget(cluster, plan, placement=placement), json))


@app.command()
def run(
    flow: Annotated[
        str, typer.Argument(help="a shipped flow, or one in a file; none: that of --plan", metavar="[FLOW]")
    ] = "",
    model: Models = None,
    data: Data = None,
    held_out: HeldOut = None,
    steps: Steps = None,
    batch: Batch = None,
    seed: Seed = 0,
    sets: Sets = None,
    eval_every: EvalEvery = 20,
    eval_rows: EvalRows = 200,
    out: RunOut = None,
    checkpoint_every: CheckpointEvery = 50,
    keep: Keep = 2,
    replay: ReplayOf = None,
    sample_rows: SampleRows = 256,
    forward_tokens: ForwardTokens = 4096,
    cluster: Clusters = None,
    placement: Placement = None,
    plan: PlanFile = None,
    memory: Memory = None,
    runtime: Runtime = None,
    address: Address = None,
    threads: Threads = None,
    log: Log = None,
    profile: Profile = None,
    attach: Attach = None,
    passes: Passes = None,
    cache: Cache = None,
    verify: Verify = False,
) -> None:
    """Train by a plan, into a run folder."""
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.run import RunOptions, run_flow
    from flowgraph.passes.verify import verified

    asked = FlowRequest(flow, every(model), data, held_out, batch, steps, seed, every(sets), every(passes), cache)
    where = PlanTarget(cluster, plan, memory, runtime, address, threads, placement)
    sizes, also = (sample_rows, forward_tokens, checkpoint_every, keep), (log, profile, attach)
    options = RunOptions(asked, eval_every, eval_rows, out, replay, where, *sizes, *also)
    with verified(verify):
        raise typer.Exit(run_flow(options))


@app.command()
def resume(
    run: RunPath,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="how many steps in all")] = None,
    cluster: Clusters = None,
    placement: Placement = None,
    plan: PlanFile = None,
    memory: Memory = None,
    runtime: Runtime = None,
    address: Address = None,
    threads: Threads = None,
    verify: Verify = False,
) -> None:
    """Go on with a run from its newest checkpoint; exit code 3: try again, 4: it cannot be."""
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.resume import resume_run
    from flowgraph.passes.verify import verified

    where = PlanTarget(cluster, plan, memory, runtime, address, threads, placement)
    with verified(verify):
        raise typer.Exit(resume_run(run, steps, where))


@app.command("data")
def data_command(
    name: Annotated[
        str | None, typer.Argument(help="digits, digits:max, addition, gsm8k, rg/NAME; none lists them")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the folder to write; default data/NAME")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="gsm8k: the folder with train.jsonl and test.jsonl")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Make a data set as Parquet in verl's schema."""
    from flowgraph.cli.data import make_data

    make_data(name, out, source, seed, cache, json)


@app.command()
def models(
    everything: Annotated[
        bool, typer.Option("--all", help="those too whose sizes are known, which a plan needs")
    ] = False,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """List the models that need no folder or hub."""
    from flowgraph.cli.listings import list_models

    list_models(cache, json, everything=everything)


@app.command()
def flows(json: Json = False) -> None:
    """List the shipped flows."""
    from flowgraph.cli.listings import list_flows

    list_flows(json)


@app.command()
def cp(
    flow: Annotated[str, typer.Argument(help="a shipped flow", metavar="FLOW")],
    path: Annotated[Path, typer.Argument(help="the file to write", metavar="FILE.py")],
) -> None:
    """Copy a shipped flow to a file of your own, to change."""
    from flowgraph.cli.listings import copy_flow

    copy_flow(flow, path)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="where the runs are")] = Path("runs"), json: Json = False) -> None:
    """List the runs: what ran, how far, and how well."""
    from flowgraph.cli.report import list_runs

    list_runs(folder, json)


@app.command()
def report(run: RunPath, json: Json = False) -> None:
    """Sum a run up and draw its curves."""
    from flowgraph.cli.report import report_run

    report_run(run, json)


@app.command()
def trace(
    run: RunPath,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the trace's file; default RUN/trace.json")] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="how many of the last steps")] = 10,
    compare: Annotated[bool, typer.Option("--compare", help="print forecast and measured, task by task")] = False,
    json: Json = False,
) -> None:
    """Write what a run measured, and what its plan forecasts, as one Chrome trace for Perfetto."""
    from flowgraph.cli.trace import trace_run

    trace_run(run, out, steps, compare, json)


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine has."""
    from flowgraph.cli.doctor import examine

    examine(json)
