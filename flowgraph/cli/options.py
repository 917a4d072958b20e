"""The options and arguments that commands share: their names, their completers, and their sections of `--help`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from flowgraph.cli import completion as complete
from flowgraph.cluster.plan import MOST_PROMPTS, MOST_THREADS

Completer = complete.Completer | str | None


def section_option(
    section: str | None,
    flags: str,
    about: str,
    completer: Completer = None,
    *,
    min: float | None = None,
    max: float | None = None,
) -> Any:
    """Return a typer option in a section of `--help`, or in the general list of options if `section` is None.

    `flags` has the option's names and the name of its value, as in `-o, --out FILE`, and `about` is its help.
    `completer` completes the value, or is a text of the words to offer. `min` and `max` are the limits of a number.
    """
    words = flags.split()
    names = [word.rstrip(",") for word in words if word.startswith("-")]
    value = " ".join(words[len(names) :]) or None
    offered = complete.one_of(*completer.split()) if isinstance(completer, str) else completer
    text: dict[str, Any] = {"help": about, "metavar": value, "rich_help_panel": section}
    return typer.Option(*names, **text, autocompletion=offered, min=min, max=max)


option, workload = partial(section_option, None), partial(section_option, "Workload")
placing, running = partial(section_option, "Cluster and plan"), partial(section_option, "Run")
sampling, searching = partial(section_option, "Responses"), partial(section_option, "Search")


def argument(name: str, about: str, completer: complete.Completer | None = None) -> Any:
    """Return a typer argument; `name` is its name in `--help`, `about` its help; `completer` completes its value."""
    return typer.Argument(help=about, metavar=name, autocompletion=completer)


PLAN_FILE = "A plan file, written by `flowgraph plan -o`."
WHAT = "A flow, a run folder, or the file of a plan, program or picture."

Cache = Annotated[Path | None, option("--cache FOLDER", "Folder for fetched models and generated data.")]
Sets = Annotated[
    list[str] | None,
    workload("--set NAME=VALUE", "A setting of the flow or of a node, e.g. policy.generate.n=16. Repeat it for more."),
]
FlowOrPlanFile = Annotated[
    str,
    argument("FLOW", "A flow (`grpo`, `my.py`, `my.py:name`) or a plan file (`plan.json`).", complete.flows_and_plans),
]
ShippedFlow = Annotated[str, argument("FLOW", "A shipped or installed flow.", complete.named_flows)]
Json = Annotated[bool, option("--json", "Print JSON.")]
RunPath = Annotated[Path, argument("RUN", "A run folder.", complete.runs)]
Verify = Annotated[bool, option("--verify", "Check the graph after every compiler pass, not only after the last.")]
PlanPath = Annotated[Path, argument("PLAN.json", PLAN_FILE, complete.plans)]
PlanOut = Annotated[Path | None, option("-o, --out PLAN.json", "Write the plan to this file.")]
What = Annotated[str, argument("WHAT", WHAT, complete.draw_targets)]
DrawnOut = Annotated[
    Path | None, option("-o, --out FILE", "Write the picture: .svg .png .html .mmd .md .dot .json .txt.")
]
To = Annotated[
    str | None,
    option("--to FORMAT", "Print the picture as text, svg, mmd, md, dot or json.", "text svg mmd md dot json"),
]
Show = Annotated[bool, option("--show", "Open the picture in a viewer; without `-o`, as a page.")]
Unfold = Annotated[bool, option("--unfold", "Draw every machine of a pool separately.")]
CalibrationFile = Annotated[
    Path | None,
    searching("--calibration CALIBRATION.json", "Scales of the forecast, written by `flowgraph calibrate -o`."),
]
Top = Annotated[int, searching("--top N", "Number of plans to show.", min=1)]
MeasuredSeconds = Annotated[
    list[str] | None,
    searching(
        "--measured NODE=SECONDS",
        "Measured seconds of a node of the plan; `step` is the whole step. Repeat it for more.",
    ),
]
MeasuredOn = Annotated[
    Path | None,
    searching("--measured-on PLAN.json", "The plan that `--measured` belongs to. Default: `--plan`.", complete.plans),
]


class RequestOptions:
    """The options that are fields of a request, with their defaults.

    A field may have several options; a command selects one, as in `takes("batch=prompts_per_batch")`.
    """

    flow: Annotated[
        str,
        argument(
            "FLOW", "A shipped or installed flow (`grpo`), or a flow in a file (`my.py`, `my.py:name`).", complete.flows
        ),
    ]
    run_flow: Annotated[
        str, argument("FLOW", "A flow (`grpo`, `my.py`, `my.py:name`). Default: the flow of `--plan`.", complete.flows)
    ] = ""
    model: Annotated[
        list[str] | None,
        workload(
            "--model [PARAM=]MODEL",
            "The model: tiny, smollm2-135m, a folder or a Hugging Face id; append +lora=RANK to train adapters. "
            "PARAM=MODEL sets the model of one parameter.",
            complete.models,
        ),
    ] = None
    data: Annotated[
        list[str] | None,
        workload(
            "--data DATA[:WEIGHT]",
            "A data set: digits, addition, gsm8k, math, rg/NAME, a file or folder, or hf:ID. Repeat it for more; "
            "a weight is its share of the prompts: b.parquet:0.3.",
            complete.data,
        ),
    ] = None
    held_out: Annotated[
        list[str] | None,
        workload("--held-out DATA", "A file or data set of held-out rows. Repeat it for more.", complete.data),
    ] = None
    columns: Annotated[
        list[str] | None,
        workload("--columns COLUMN=SOURCE", "Read columns by other names: prompt=problem,answer=solution."),
    ] = None
    max_prompt_tokens: Annotated[
        int | None, workload("--max-prompt-tokens N", "Maximum tokens of a prompt, chat template included.", min=1)
    ] = None
    long_prompts: Annotated[
        str | None,
        workload(
            "--long-prompts WHAT",
            "What to do with a longer prompt: refuse (the default), drop, truncate-left, truncate-right or "
            "truncate-middle.",
            "refuse drop truncate-left truncate-right truncate-middle",
        ),
    ] = None
    batch: Annotated[int | None, workload("--batch N", "Prompts per step.", min=1, max=MOST_PROMPTS)] = None
    settings: Sets = None
    passes: Annotated[
        list[str] | None,
        workload("--pass PASS", "A compiler pass of your own (my.py:name), run after the others. Repeat it for more."),
    ] = None
    prompt_tokens: Annotated[
        str | None, workload("--prompt-tokens TOKENS", "Prompt lengths: 512, mean=1k,p99=4k, or FILE.parquet:COLUMN.")
    ] = None
    response_tokens: Annotated[
        str | None,
        workload(
            "--response-tokens TOKENS", "Response lengths, e.g. mean=2k,p99=16k. Default: max_tokens of the flow."
        ),
    ] = None
    cache: Cache = None
    cluster: Annotated[
        str | None,
        placing(
            "--cluster CLUSTER",
            "The cluster: laptop (two CPU devices), 1xcpu, 2x8xh100, or a TOML file. Default: this machine.",
            complete.clusters,
        ),
    ] = None
    largest_cluster: Annotated[
        str, placing("--cluster CLUSTER", "The largest cluster to consider, e.g. 16x8xh100.", complete.clusters)
    ] = "16x8xh100"
    placement: Annotated[
        str | None,
        placing(
            "--placement PLACEMENT",
            "A named placement: colocated, hybrid, split or standalone, or a variant such as split:openrlhf.",
            complete.placements,
        ),
    ] = None
    plan: Annotated[Path | None, placing("--plan PLAN.json", PLAN_FILE, complete.plans)] = None
    depth: Annotated[
        int | None,
        placing("--depth N", "Let sampling work N steps ahead of training; the flow says how old weights may be."),
    ] = None
    sync_every: Annotated[
        int | None, placing("--sync-every N", "Copy the trained weights to sampling every N steps. Default: 1.")
    ] = None
    chunks: Annotated[
        int | None,
        placing("--chunks N", "Read the responses of a step in N chunks, as they finish, while others are sampled."),
    ] = None
    contract: Annotated[
        str | None,
        placing(
            "--contract CONTRACT",
            "scheduled: a sync waits for responses under way. in_flight: they go on with the new weights. "
            "ready: so they do, and a step trains on the groups that have finished, the oldest first.",
            "scheduled in_flight ready",
        ),
    ] = None
    memory: Annotated[
        str | None, placing("--memory 2GiB", "Memory of this machine to plan for. Default: 7/8 of it, in whole GiB.")
    ] = None
    runtime: Annotated[
        str | None,
        placing(
            "--runtime RUNTIME", "local (this process) or ray. Default: chosen by the devices of the plan.", "local ray"
        ),
    ] = None
    address: Annotated[str | None, placing("--address HOST:PORT", "Address of a running Ray cluster.")] = None
    threads: Annotated[
        int | None,
        placing(
            "--threads N",
            "Threads per process. Default: 1 for tiny models, otherwise an equal share of the cores.",
            min=1,
            max=MOST_THREADS,
        ),
    ] = None
    attach: Annotated[
        Path | None, placing("--attach SERVERS.json", "A file that lists running inference servers to use.")
    ] = None
    steps: Annotated[int | None, running("--steps N", "Number of steps.", min=1)] = None
    epochs: Annotated[float | None, running("--epochs N", "Number of times to read the rows, instead of --steps.")] = (
        None
    )
    total_steps: Annotated[int | None, running("--steps N", "Total number of steps.", min=1)] = None
    seed: Annotated[int, running("--seed N", "Random seed.", min=0, max=2**63 - 1)] = 0
    eval_every: Annotated[
        int, running("--eval-every N", "Evaluate on held-out prompts every N steps; 0 disables this.", min=0)
    ] = 20
    eval_rows: Annotated[int, running("--eval-rows N", "Maximum number of held-out prompts.", min=1)] = 200
    eval_n: Annotated[int, running("--eval-n N", "Responses per held-out prompt, for pass@k and maj@k.", min=1)] = 1
    check_temperature: Annotated[
        float | None,
        running(
            "--eval-temperature T", "Temperature of these. Default: 0 (greedy) for one response, otherwise 1.", min=0.0
        ),
    ] = None
    run_folder: Annotated[Path | None, running("-o, --out RUN", "The run folder. Default: runs/FLOW-N.")] = None
    checkpoint_every: Annotated[
        int, running("--checkpoint-every N", "Write a checkpoint every N steps; 0 disables this.", min=0)
    ] = 50
    keep: Annotated[int, running("--keep N", "Number of checkpoints to keep.", min=1)] = 2
    keep_best: Annotated[
        str | None,
        running(
            "--keep-best METRIC",
            "Also keep the checkpoint with the highest METRIC of held-out prompts, e.g. eval/accuracy or eval/SOURCE.",
        ),
    ] = None
    record_tokens: Annotated[
        int | None,
        running(
            "--record-tokens N",
            "Record values of tokens, such as log-probs, of N responses per step; 0: of none. Default: 256.",
            min=0,
        ),
    ] = None
    warnings: Annotated[
        str,
        running(
            "--warnings A,B",
            "Training warnings to give: all, none, or names, e.g. no_signal; -NAME leaves one out.",
            "all none no_signal constant_reward frozen_entropy exploding_kl clip_bound all_cut",
        ),
    ] = "all"
    replay: Annotated[
        Path | None, running("--replay RUN", "Reuse the recorded rollouts of another run.", complete.runs)
    ] = None
    log: Annotated[
        str | None,
        running(
            "--log A,B",
            "Also report metrics to these trackers: tensorboard, wandb, trackio, swanlab.",
            "tensorboard wandb trackio swanlab",
        ),
    ] = None
    profile: Annotated[str | None, running("--profile 3,7", "Profile these steps, counted from 0.")] = None
    subject: Annotated[
        str | None, argument("MODEL_OR_RUN", "A model, as in `--model`, or a run folder.", complete.models_and_runs)
    ] = None
    generations: Annotated[
        Path | None, workload("--generations FILE.parquet", "Score the responses of this file again, without a model.")
    ] = None
    by: Annotated[
        str | None,
        workload("--by RULE", "The scoring rule: its name, path.py:name, or `data` for the rule of the data set."),
    ] = None
    prompt: Annotated[
        list[str] | None, workload("--prompt TEXT", "A prompt whose response is printed. Repeat it for more.")
    ] = None
    n: Annotated[int, sampling("--n N", "Responses per prompt.", min=1)] = 1
    eval_temperature: Annotated[
        float | None,
        sampling("--temperature T", "Sampling temperature. Default: 0 (greedy) for n=1, otherwise 1.", min=0.0),
    ] = None
    temperature: Annotated[float, sampling("--temperature T", "Sampling temperature; 0 is greedy.", min=0.0)] = 1.0
    split: Annotated[
        str | None,
        workload(
            "--split SPLIT", "held-out or train. Default: held-out where the data has such rows.", "held-out train"
        ),
    ] = None
    rows: Annotated[int | None, workload("--rows N", "Maximum number of prompts.", min=1)] = None
    max_tokens: Annotated[
        int | None,
        sampling(
            "--max-tokens N", "Maximum response length in tokens. Default: that of the run, or of the data set.", min=1
        ),
    ] = None
    prompts_per_batch: Annotated[int | None, sampling("--batch N", "Prompts per batch.", min=1, max=MOST_PROMPTS)] = (
        None
    )
    sampling_seed: Annotated[
        int | None, sampling("--seed N", "Random seed. Default: that of the run.", min=0, max=2**63 - 1)
    ] = None
    param: Annotated[str | None, sampling("--param PARAM", "The parameter of the run whose model is used.")] = None
    sample_rows: Annotated[
        int, sampling("--sample-rows N", "Number of responses that a rank decodes together.", min=1)
    ] = 256
    forward_tokens: Annotated[
        int, sampling("--forward-tokens N", "Padded tokens in a forward pass without gradients.", min=1)
    ] = 4096
    overwrite: Annotated[bool, option("--overwrite", "Replace the output file if it exists.")] = False
    scores_file: Annotated[
        Path | None, option("-o, --out FILE", "Write responses and scores (.parquet) or the report (.json).")
    ] = None
    responses_file: Annotated[Path | None, option("-o, --out FILE.parquet", "The file to write.")] = None
    engine: Annotated[
        list[str] | None,
        searching(
            "--engine USE=ENGINE",
            "The engine for training or sampling, e.g. train=megatron or sample=vllm.",
            complete.engines,
        ),
    ] = None
    precision: Annotated[
        str | None,
        searching(
            "--precision PRECISION", "Weight precision of the rollout engine: bfloat16, fp8 or fp4.", "bfloat16 fp8 fp4"
        ),
    ] = None
    constants: Annotated[
        Path | None, searching("--profile PROFILE.toml", "A file of engine constants that replaces the built-in ones.")
    ] = None
    method: Annotated[
        str, searching("--search METHOD", "The search method: auto, exact or greedy.", "auto exact greedy")
    ] = "auto"
    objective: Annotated[
        str,
        searching(
            "--objective OBJECTIVE",
            "Minimize the step time (step), the cost of a step (cost) or the number of devices (devices).",
            "step cost devices",
        ),
    ] = "step"
    pin: Annotated[
        list[str] | None,
        searching(
            "--pin ROLE=POOL", "Pin a role to a pool, e.g. policy.sample=pool0. Roles with the same name share a pool."
        ),
    ] = None
    what_if: Annotated[
        list[str] | None,
        searching(
            "--what-if CHANGE",
            "Replan with a change: length.p99=16k, prompt.mean=1k, batch=1024, network=400Gbps (per machine), "
            "staleness=1, ratio=3:1, precision=fp8 or devices=4x8xh200.",
        ),
    ] = None
    robust: Annotated[
        bool, searching("--robust", "Prefer the plan that loses least if real costs differ from the forecast.")
    ] = False
    staleness: Annotated[
        str | None,
        searching(
            "--staleness N|auto",
            "Maximum rollout staleness in policy updates, or `auto` to let the planner choose.",
            "auto",
        ),
    ] = None
    ratio: Annotated[
        str | None, searching("--ratio G:T", "Ratio of rollout to training devices when they are separate, e.g. 3:1.")
    ] = None
    streamed: Annotated[
        bool,
        searching(
            "--streamed",
            "Read the groups of a step while others are sampled, in as many chunks as make the step shorter.",
        ),
    ] = False


REQUEST_HINTS = get_type_hints(RequestOptions, include_extras=True)

Fields = dict[str, Any]
"""The fields of a request, as the command line has them."""


def takes(names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds options of a request to a command, and passes their values as its first argument.

    This argument is a dict by field, without the command's own parameters, which are passed by name. The decorator
    raises KeyError for an unknown name.

    Args:
        names: all options in the order of `--help`, including the command's own parameters: a field of a request, or
            `field=option` where another of `RequestOptions` is the option of that field.
    """
    options = {field: option or field for field, _, option in (name.partition("=") for name in names.split())}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        mine, hints = signature(function).parameters, get_type_hints(function, include_extras=True)
        parameters = list[Parameter]()
        for field, name in options.items():
            default = mine[field].default if field in mine else getattr(RequestOptions, name, Parameter.empty)
            hint = hints[field] if field in mine else REQUEST_HINTS[name]
            parameters.append(Parameter(field, Parameter.KEYWORD_ONLY, default=default, annotation=hint))

        def command(**arguments: Any) -> None:
            fields = {field: arguments.pop(field) for field in options if field not in mine}
            function(fields, **arguments)

        command.__doc__ = function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(command)["__signature__"] = Signature(parameters)
        return command

    return decorate
