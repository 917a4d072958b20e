"""The options and arguments that commands share: their names, what completes them, and the section of `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli import completion as complete
from flowgraph.cluster.plan import MOST_PROMPTS, MOST_THREADS

WORKLOAD, PLACE, RUN, SAMPLING = "Workload", "Cluster and plan", "Run", "Responses"
"""Sections of `--help`; an option without one is under "Options"."""

FlowName = Annotated[
    str,
    typer.Argument(
        help="A shipped or installed flow (`grpo`), or a flow in a file (`my.py`, `my.py:name`).",
        metavar="FLOW",
        autocompletion=complete.flows,
    ),
]
FlowOrPlanFile = Annotated[
    str,
    typer.Argument(
        help="A flow (`grpo`, `my.py`, `my.py:name`) or a plan file (`plan.json`).",
        metavar="FLOW",
        autocompletion=complete.flows_and_plans,
    ),
]
MaybeFlow = Annotated[
    str,
    typer.Argument(
        help="A flow (`grpo`, `my.py`, `my.py:name`). Default: the flow of `--plan`.",
        metavar="FLOW",
        autocompletion=complete.flows,
    ),
]
ShippedFlow = Annotated[
    str, typer.Argument(help="A shipped or installed flow.", metavar="FLOW", autocompletion=complete.named_flows)
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of the flow or of a node, e.g. policy.generate.n=16. Repeat it for more.",
        metavar="NAME=VALUE",
        rich_help_panel=WORKLOAD,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="The model: tiny, smollm2-135m, a folder or a Hugging Face id; append +lora=RANK to train adapters. "
        "PARAM=MODEL sets the model of one parameter.",
        metavar="[PARAM=]MODEL",
        autocompletion=complete.models,
        rich_help_panel=WORKLOAD,
    ),
]
Cache = Annotated[
    Path | None, typer.Option("--cache", help="Folder for fetched models and generated data.", metavar="FOLDER")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory of this machine to plan for. Default: 7/8 of it, in whole GiB.",
        metavar="2GiB",
        rich_help_panel=PLACE,
    ),
]
Clusters = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="The cluster: laptop (two CPU devices), 1xcpu, 2x8xh100, or a TOML file. Default: this machine.",
        metavar="CLUSTER",
        autocompletion=complete.clusters,
        rich_help_panel=PLACE,
    ),
]
MostDevices = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="The largest cluster to consider, e.g. 16x8xh100.",
        metavar="CLUSTER",
        autocompletion=complete.clusters,
        rich_help_panel=PLACE,
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="A named placement: colocated, hybrid, split or standalone, or a variant such as split:openrlhf.",
        metavar="PLACEMENT",
        autocompletion=complete.placements,
        rich_help_panel=PLACE,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="A plan file, written by `flowgraph plan -o`.",
        metavar="PLAN.json",
        autocompletion=complete.plans,
        rich_help_panel=PLACE,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="The data set: digits, addition, gsm8k, rg/NAME, a file or folder, or hf:ID.",
        metavar="DATA",
        autocompletion=complete.data,
        rich_help_panel=WORKLOAD,
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN", autocompletion=complete.runs)]
Batch = Annotated[
    int | None,
    typer.Option("--batch", min=1, max=MOST_PROMPTS, help="Prompts per step.", metavar="N", rich_help_panel=WORKLOAD),
]
HeldOut = Annotated[
    str | None,
    typer.Option("--held-out", help="A file of held-out rows.", metavar="FILE", rich_help_panel=WORKLOAD),
]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="Number of steps.", metavar="N", rich_help_panel=RUN)]
TotalSteps = Annotated[
    int | None, typer.Option("--steps", min=1, help="Total number of steps.", metavar="N", rich_help_panel=RUN)
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Random seed.", metavar="N", rich_help_panel=RUN)
]
EvalEvery = Annotated[
    int,
    typer.Option(
        "--eval-every",
        min=0,
        help="Evaluate on held-out prompts every N steps; 0 never does.",
        metavar="N",
        rich_help_panel=RUN,
    ),
]
EvalRows = Annotated[
    int,
    typer.Option("--eval-rows", min=1, help="Maximum number of held-out prompts.", metavar="N", rich_help_panel=RUN),
]
RunOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="The run folder. Default: runs/FLOW-N.", metavar="RUN", rich_help_panel=RUN),
]
ReplayOf = Annotated[
    Path | None,
    typer.Option(
        "--replay",
        help="Reuse the recorded rollouts of another run.",
        metavar="RUN",
        autocompletion=complete.runs,
        rich_help_panel=RUN,
    ),
]
SampleRows = Annotated[
    int,
    typer.Option(
        "--sample-rows",
        min=1,
        help="Number of responses that a rank decodes together.",
        metavar="N",
        rich_help_panel=SAMPLING,
    ),
]
ForwardTokens = Annotated[
    int,
    typer.Option(
        "--forward-tokens",
        min=1,
        help="Padded tokens in a forward pass without gradients.",
        metavar="N",
        rich_help_panel=SAMPLING,
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        help="local (this process) or ray. Default: chosen by the devices of the plan.",
        metavar="RUNTIME",
        autocompletion=complete.one_of("local", "ray"),
        rich_help_panel=PLACE,
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Address of a running Ray cluster.", metavar="HOST:PORT", rich_help_panel=PLACE),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MOST_THREADS,
        help="Threads per process. Default: 1 for tiny models, otherwise an equal share of the cores.",
        metavar="N",
        rich_help_panel=PLACE,
    ),
]
CheckpointEvery = Annotated[
    int,
    typer.Option(
        "--checkpoint-every",
        min=0,
        help="Write a checkpoint every N steps; 0 never does.",
        metavar="N",
        rich_help_panel=RUN,
    ),
]
Keep = Annotated[
    int, typer.Option("--keep", min=1, help="Number of checkpoints to keep.", metavar="N", rich_help_panel=RUN)
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        help="Also report metrics to these trackers: tensorboard, wandb, trackio, swanlab.",
        metavar="A,B",
        autocompletion=complete.one_of("tensorboard", "wandb", "trackio", "swanlab"),
        rich_help_panel=RUN,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option("--profile", help="Profile these steps, counted from 0.", metavar="3,7", rich_help_panel=RUN),
]
Attach = Annotated[
    Path | None,
    typer.Option(
        "--attach",
        help="A file that lists running inference servers to use.",
        metavar="SERVERS.json",
        rich_help_panel=PLACE,
    ),
]
Passes = Annotated[
    list[str] | None,
    typer.Option(
        "--pass",
        help="A compiler pass of your own (my.py:name), run after the others. Repeat it for more.",
        metavar="PASS",
        rich_help_panel=WORKLOAD,
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Check the graph after every compiler pass, not only after the last.")
]
PromptTokens = Annotated[
    str | None,
    typer.Option(
        "--prompt-tokens",
        help="Prompt lengths: 512, mean=1k,p99=4k, or FILE.parquet:COLUMN.",
        metavar="TOKENS",
        rich_help_panel=WORKLOAD,
    ),
]
ResponseTokens = Annotated[
    str | None,
    typer.Option(
        "--response-tokens",
        help="Response lengths, e.g. mean=2k,p99=16k. Default: max_tokens of the flow.",
        metavar="TOKENS",
        rich_help_panel=WORKLOAD,
    ),
]
PLAN_FILE = "A plan file, written by `flowgraph plan -o`."
PlanPath = Annotated[Path, typer.Argument(help=PLAN_FILE, metavar="PLAN.json", autocompletion=complete.plans)]
PlanOut = Annotated[Path | None, typer.Option("-o", "--out", help="Write the plan to this file.", metavar="PLAN.json")]
AskedModel = Annotated[
    str | None,
    typer.Argument(
        help="A model, as in `--model`, or a run folder.",
        metavar="MODEL_OR_RUN",
        autocompletion=complete.models_and_runs,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="held-out or train. Default: held-out where the data has such rows.",
        metavar="SPLIT",
        autocompletion=complete.one_of("held-out", "train"),
        rich_help_panel=WORKLOAD,
    ),
]
EvalPrompts = Annotated[
    int | None,
    typer.Option("--rows", min=1, help="Maximum number of prompts.", metavar="N", rich_help_panel=WORKLOAD),
]
BatchPrompts = Annotated[
    int | None,
    typer.Option("--batch", min=1, max=MOST_PROMPTS, help="Prompts per batch.", metavar="N", rich_help_panel=SAMPLING),
]
SamplesPerPrompt = Annotated[
    int, typer.Option("--n", min=1, help="Responses per prompt.", metavar="N", rich_help_panel=SAMPLING)
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        help="Maximum response length in tokens. Default: that of the run, or of the data set.",
        metavar="N",
        rich_help_panel=SAMPLING,
    ),
]
SampleSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        max=2**63 - 1,
        help="Random seed. Default: that of the run.",
        metavar="N",
        rich_help_panel=SAMPLING,
    ),
]
WhichParam = Annotated[
    str | None,
    typer.Option(
        "--param",
        help="The parameter of the run whose model is used.",
        metavar="PARAM",
        rich_help_panel=SAMPLING,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]
WHAT = "A flow, a run folder, or the file of a plan, program or picture."
What = Annotated[str, typer.Argument(help=WHAT, metavar="WHAT", autocompletion=complete.drawable)]
DrawnOut = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Write the picture: .svg .png .html .mmd .md .dot .json .txt.", metavar="FILE"),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="Print the picture as text, svg, mmd, md, dot or json.",
        metavar="FORMAT",
        autocompletion=complete.one_of("text", "svg", "mmd", "md", "dot", "json"),
    ),
]
Show = Annotated[bool, typer.Option("--show", help="Open the picture in a viewer; without `-o`, as a page.")]
Unfold = Annotated[bool, typer.Option("--unfold", help="Draw every machine of a pool separately.")]
