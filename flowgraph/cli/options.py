"""The options and arguments that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cluster.plan import MOST_PROMPTS, MOST_THREADS

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
    str | None,
    typer.Option(
        "--memory", help="plan for this much memory of this machine (default: 7/8 of it, in whole GiB)", metavar="2GiB"
    ),
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
ConstantsFile = Annotated[
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
PlanPath = Annotated[Path, typer.Argument(help="a plan's file, from `plan -o`", metavar="PLAN.json")]
AskedModel = Annotated[
    str | None, typer.Argument(help="a model, as --model takes it, or a run's folder", metavar="MODEL_OR_RUN")
]
Split = Annotated[str | None, typer.Option("--split", help="held-out (if there are such rows), or train")]
EvalPrompts = Annotated[int | None, typer.Option("--rows", min=1, help="how many prompts at most")]
BatchPrompts = Annotated[int | None, typer.Option("--batch", min=1, max=MOST_PROMPTS, help="prompts at once")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="default the run's, or known for the data")]
SampleSeed = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="names the draws; default the run's")
]
WhichParam = Annotated[str | None, typer.Option("--param", help="which of a run's models")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace the file if it is there")]
WHAT = "a flow, a file of a plan, program or picture, or a run's folder"
What = Annotated[str, typer.Argument(help=WHAT, metavar="WHAT")]
DrawnOut = Annotated[
    Path | None, typer.Option("-o", "--out", help="write .svg .png .html .mmd .md .dot .json .txt", metavar="FILE")
]
To = Annotated[str | None, typer.Option("--to", help="print it as text, svg, mmd, md, dot or json", metavar="FORMAT")]
Show = Annotated[bool, typer.Option("--show", help="open it in this machine's viewer; without -o a page")]
Unfold = Annotated[bool, typer.Option("--unfold", help="each machine of a pool, however many there are")]
