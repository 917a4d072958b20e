"""The options of commands that search for a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli import completion as complete

SEARCH = "Search"
"""The section of `--help`."""

Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        help="The engine for training or sampling, e.g. train=megatron or sample=vllm.",
        metavar="USE=ENGINE",
        autocompletion=complete.engines,
        rich_help_panel=SEARCH,
    ),
]
SamplingPrecision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Weight precision of the rollout engine: bfloat16, fp8 or fp4.",
        metavar="PRECISION",
        autocompletion=complete.one_of("bfloat16", "fp8", "fp4"),
        rich_help_panel=SEARCH,
    ),
]
ConstantsFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        help="A file of engine constants that replaces the built-in ones.",
        metavar="PROFILE.toml",
        rich_help_panel=SEARCH,
    ),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="Scales of the forecast, written by `flowgraph calibrate -o`.",
        metavar="CALIBRATION.json",
        rich_help_panel=SEARCH,
    ),
]
Search = Annotated[
    str,
    typer.Option(
        "--search",
        help="The search method: auto, exact or greedy.",
        metavar="METHOD",
        autocompletion=complete.one_of("auto", "exact", "greedy"),
        rich_help_panel=SEARCH,
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        help="Minimize the step time (step), the cost of a step (cost) or the number of devices (devices).",
        metavar="OBJECTIVE",
        autocompletion=complete.one_of("step", "cost", "devices"),
        rich_help_panel=SEARCH,
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        help="Pin a role to a pool, e.g. policy.sample=pool0. Roles with the same name share a pool.",
        metavar="ROLE=POOL",
        rich_help_panel=SEARCH,
    ),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        help="Replan with a change: length.p99=16k, prompt.mean=1k, batch=1024, network=400Gbps (per machine), "
        "staleness=1, ratio=3:1, precision=fp8 or devices=4x8xh200.",
        metavar="CHANGE",
        rich_help_panel=SEARCH,
    ),
]
Staleness = Annotated[
    str | None,
    typer.Option(
        "--staleness",
        help="Maximum rollout staleness in policy updates, or `auto` to let the planner choose.",
        metavar="N|auto",
        autocompletion=complete.one_of("auto"),
        rich_help_panel=SEARCH,
    ),
]
Ratio = Annotated[
    str | None,
    typer.Option(
        "--ratio",
        help="Ratio of rollout to training devices when they are separate, e.g. 3:1.",
        metavar="G:T",
        rich_help_panel=SEARCH,
    ),
]
Streamed = Annotated[
    bool,
    typer.Option(
        "--streamed",
        help="Let partial rollouts continue across steps, so that a step need not wait for its longest response.",
        rich_help_panel=SEARCH,
    ),
]
Robust = Annotated[
    bool,
    typer.Option(
        "--robust",
        help="Prefer the plan that loses least if real costs differ from the forecast.",
        rich_help_panel=SEARCH,
    ),
]
Top = Annotated[int, typer.Option("--top", min=1, help="Number of plans to show.", metavar="N", rich_help_panel=SEARCH)]
MeasuredSeconds = Annotated[
    list[str] | None,
    typer.Option(
        "--measured",
        help="Measured seconds of a node of the plan; `step` is the whole step. Repeat it for more.",
        metavar="NODE=SECONDS",
        rich_help_panel=SEARCH,
    ),
]
MeasuredOn = Annotated[
    Path | None,
    typer.Option(
        "--measured-on",
        help="The plan that `--measured` belongs to. Default: `--plan`.",
        metavar="PLAN.json",
        autocompletion=complete.plans,
        rich_help_panel=SEARCH,
    ),
]
