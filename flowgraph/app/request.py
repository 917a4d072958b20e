"""The request of one command or call, with a part for each kind of option; it is built by keyword."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_serializer, model_validator

from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.plan import MOST_CHUNKS, MOST_PROMPTS, MOST_THREADS, Contract, Plan
from flowgraph.errors import SettingError, UsageError, nearest
from flowgraph.flows.flow_files import flow_text
from flowgraph.language.flow import Flow

Say = Callable[[str], None]
"""Takes a line for you, while something runs."""

FlowLike = str | Flow[..., Any]
"""A shipped flow by its name, one in a file as `my.py:name`, or the flow itself."""

LongPrompts = Literal["refuse", "drop", "truncate-left", "truncate-right", "truncate-middle"]
"""What becomes of a prompt that is too long."""

SAMPLE_ROWS, FORWARD_TOKENS = 256, 4096  # rows decoded together, and padded tokens of a pass without gradients
MOST_STEPS, MOST_EPOCHS = 10**12, 10**6  # more than anyone runs, and few enough that a typing error is refused
OPTIONS = {"settings": "--set", "passes": "--pass", "method": "--search", "constants": "--profile"}
"""The option of an argument of another name."""


def _texts(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, Mapping):
        return tuple(f"{name}={part if isinstance(part, str) else json.dumps(part)}" for name, part in value.items())
    return tuple(value) if isinstance(value, list | set) else value


def _weighted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(f"{name}:{weight}" for name, weight in value.items())
    if isinstance(value, Path):
        return (str(value),)
    parts = _texts(value)
    return tuple(_text(part) for part in parts) if isinstance(parts, tuple) else parts


def _text(value: Any) -> Any:
    if isinstance(value, tuple):
        return ":".join(map(str, value))
    return str(value) if type(value) is int or isinstance(value, Path) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""Several texts, also of one, of a list, or of a mapping as `name=value`."""
Sets = Annotated[tuple[str, ...], BeforeValidator(_weighted)]
"""Several data sets, `SET` or `SET:WEIGHT`, also of one, of pairs with a weight, or of a mapping to weights."""
Text = Annotated[str, BeforeValidator(_text)]
"""A text, also of a number, or of a pair of them as a ratio."""

MOST_STEPS_AHEAD = 1024  # a typing error, not a depth


class Part(BaseModel):
    """A part of a request; it is immutable and refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Workload(Part):
    """The flow to train, its models, its rows and their lengths.

    `data` are data sets, each with a weight if it should have a share of the prompts; `columns` are texts such as
    `prompt=problem`. `long_prompts` says what becomes of prompts of more than `max_prompt_tokens` tokens. Lengths are
    texts that `LengthDistribution.parse` reads, or `FILE.parquet:COLUMN`. Raises pydantic's ValidationError, for
    example for `steps` together with `epochs`, and for `long_prompts` without a maximum.
    """

    flow: FlowLike = ""
    model: Texts = ()
    data: Sets = ()
    held_out: Sets = ()
    columns: Texts = ()
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    long_prompts: LongPrompts | None = None
    batch: Annotated[int, Field(ge=1, le=MOST_PROMPTS)] | None = None
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    epochs: Annotated[float, Field(gt=0, le=MOST_EPOCHS, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    prompt_tokens: Text | None = None
    response_tokens: Text | None = None
    settings: Texts = ()
    passes: Texts = ()
    cache: Path | None = None

    @model_validator(mode="after")
    def _contradictions(self) -> Workload:
        if self.steps is not None and self.epochs is not None:
            what = f"--steps {self.steps} is given too: the length of a run is either steps or epochs"
            raise UsageError(what, where=f"--epochs {self.epochs:g}", hint="leave one of them out")
        if self.long_prompts is not None and self.max_prompt_tokens is None:
            what = "has no effect without a maximum"
            raise UsageError(what, where=f"--long-prompts {self.long_prompts}", hint="--max-prompt-tokens 512")
        return self

    def sets(self, name: str) -> bool:
        """Return whether `settings` has a value for the setting with this full name, such as `policy.generate.n`."""
        return any(text.startswith(f"{name}=") for text in self.settings)

    @field_serializer("flow")
    def _flow_as_text(self, flow: FlowLike) -> str:
        return flow_text(flow)


class Target(Part):
    """Where to run: a cluster ("" is this machine, `memory` how much of it to use), or a plan with its own cluster.

    `placement` is a named placement on that cluster, such as `split`. With `depth` or `sync_every`, sampling works
    `depth` steps ahead of training, and gets weights every `sync_every` steps; `contract` says what a sync does to the
    responses under way. With `chunks`, sampling hands out the groups of a step in that many chunks, as they finish.
    Raises pydantic's ValidationError, for example for a plan together with a cluster, a memory or a placement.
    """

    cluster: str = ""
    plan: Path | Plan | None = None
    memory: str | None = None
    placement: str = ""
    depth: Annotated[int, Field(ge=0, le=MOST_STEPS_AHEAD)] | None = None
    sync_every: Annotated[int, Field(ge=1, le=MOST_STEPS_AHEAD)] | None = None
    chunks: Annotated[int, Field(ge=1, le=MOST_CHUNKS)] | None = None
    contract: Contract | None = None

    @property
    def overlap(self) -> tuple[int | None, int | None] | None:
        """Return (depth, sync period) in steps; an unset one is None, and so is the result if both are unset."""
        return None if self.depth is None and self.sync_every is None else (self.depth, self.sync_every)

    @property
    def changes_plan(self) -> bool:
        """Return whether overlap, a contract or chunks are asked for, which change the plan that is found or named."""
        return self.overlap is not None or self.contract is not None or self.chunks is not None

    @model_validator(mode="after")
    def _contradictions(self) -> Target:
        if self.plan is not None and (self.cluster or self.memory is not None):
            option = "--cluster" if self.cluster else "--memory"
            raise UsageError(f"{option} has no effect: the plan defines its cluster", where=f"--plan {self}")
        if self.plan is not None and self.placement:
            raise UsageError("--placement has no effect: the plan defines its pools", where=f"--plan {self}")
        return self

    def __str__(self) -> str:
        if isinstance(self.plan, Plan):
            return f"plan of {self.plan.flow}"
        return str(self.plan) if self.plan is not None else self.cluster or "this machine"


class Search(Part):
    """How a plan is searched: engines and their constants, the objective, fixed roles, and staleness.

    `engine` has texts such as `train=megatron`, `pin` texts `ROLE=POOL`, and `what_if` texts such as
    `devices=4x8xh200`. `constants` is a file of constants of engines, and a `calibration` scales forecast seconds.
    """

    engine: Texts = ()
    precision: str | None = None
    constants: Path | None = None
    calibration: Calibration | None = None
    objective: str = "step"
    method: str = "auto"
    pin: Texts = ()
    what_if: Texts = ()
    robust: bool = False
    staleness: Text = ""
    ratio: Text = ""
    streamed: bool = False


class Execution(Part):
    """How a plan is run: `runtime` is "local" (this process) or "ray", `address` that of a running Ray cluster.

    `threads` are those of each process; `attach` is a file that lists running servers of engines. None selects a
    default. `sample_rows` is the number of responses that a rank decodes together, `forward_tokens` the number of
    padded tokens in a pass without gradients.
    """

    runtime: str | None = None
    address: str | None = None
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = None
    sample_rows: Annotated[int, Field(ge=1)] = SAMPLE_ROWS
    forward_tokens: Annotated[int, Field(ge=1)] = FORWARD_TOKENS
    attach: Path | None = None


class Training(Part):
    """How a run is checked, recorded and saved; `eval_every` and `checkpoint_every` are in steps, and 0 means never.

    `log` names trackers that also receive the metrics, `profile` the steps to profile. `keep_best` names the metric of
    held-out checks by which the best checkpoint is kept. `record_tokens` is the number of responses of each step for
    which values of tokens are recorded, and `replay` the folder of a run whose rollouts are used again. `warnings` has
    the names of training warnings to give, as `chosen_rules` reads them.
    """

    eval_every: Annotated[int, Field(ge=0)] = 20
    eval_rows: Annotated[int, Field(ge=1)] = 200
    eval_n: Annotated[int, Field(ge=1)] = 1
    eval_temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    keep_best: str | None = None
    record_tokens: Annotated[int, Field(ge=0)] | None = None
    warnings: Text = "all"
    replay: Path | None = None
    checkpoint_every: Annotated[int, Field(ge=0)] = 50
    keep: Annotated[int, Field(ge=1)] = 2
    log: str | None = None
    profile: Text | None = None


class Sampling(Part):
    """Which responses are generated and how they are scored; None selects the default of the model or the data.

    `subject` is a model or the folder of a run; `param` chooses one of the run's models. `generations` is a file of
    responses to score without a model, and `prompt` are texts that replace a data set. `by` is the scoring rule.
    """

    subject: str | None = None
    param: str | None = None
    generations: Path | None = None
    prompt: Texts = ()
    by: str | None = None
    split: str | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class Output(Part):
    """The file or folder to write; an existing file is replaced only if `overwrite` is true."""

    out: Path | None = None
    overwrite: bool = False


class Request(Part):
    """Everything that one command or call asks for."""

    workload: Workload = Workload()
    target: Target = Target()
    search: Search = Search()
    execution: Execution = Execution()
    training: Training = Training()
    sampling: Sampling = Sampling()
    output: Output = Output()

    @property
    def flow(self) -> str:
        """Return the flow as text: `grpo`, `my.py:name`, or the name of a flow that is in no file."""
        return flow_text(self.workload.flow)

    def changed(self, **values: Any) -> Request:
        """Return a copy of the request in which fields of any of its parts, given by name, have new values.

        Values are not validated. Raises UsageError for an unknown field.
        """
        parts = {name: getattr(self, name).model_copy(update=fields) for name, fields in _by_part(values).items()}
        return self.model_copy(update=parts)


PARTS: Mapping[str, type[Part]] = {name: type(field.default) for name, field in Request.model_fields.items()}
_PART_OF = {field: name for name, part in PARTS.items() for field in part.model_fields}


def _by_part(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in _PART_OF:
            raise UsageError(f"no argument `{name}`", where=f"{name}=", hint=nearest(name, _PART_OF))
        parts.setdefault(_PART_OF[name], {})[name] = value
    return parts


def make_request(**values: Any) -> Request:
    """Build a request from fields of any of its parts, by name; None leaves a field at its default.

    Raises UsageError for a name that no part has and for values that contradict each other, SettingError for a value
    that its field does not allow.

    >>> make_request(flow="grpo", batch=8).workload.batch
    8
    """
    parts = dict[str, Any]()
    for part, fields in _by_part({name: value for name, value in values.items() if value is not None}).items():
        try:
            parts[part] = PARTS[part](**fields)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            if isinstance(contradiction := fault.get("ctx", {}).get("error"), UsageError):
                raise contradiction from None
            field = str(fault["loc"][0])
            raise SettingError.refused(option(field), field, fields.get(field), fault["msg"]) from None
    return Request(**parts)


def fields(arguments: Mapping[str, Any], *, but: str = "") -> dict[str, Any]:
    """Return the entries of `arguments`, such as a function's `locals()`, except the names in `but`, split at spaces.

    >>> fields({"flow": "grpo", "json": True}, but="json")
    {'flow': 'grpo'}
    """
    return {name: value for name, value in arguments.items() if name not in but.split()}


def option(name: str) -> str:
    """Return the command-line option that sets a field of a request.

    >>> option("eval_every"), option("settings")
    ('--eval-every', '--set')
    """
    return OPTIONS.get(name, f"--{name.replace('_', '-')}")


def saved_request(saved: Mapping[str, Any]) -> Request:
    """Return the request that was saved in a run's folder; formats of older versions are read too.

    Raises ValueError if a part of the request is not a mapping, UsageError for an unknown field or for values that
    contradict each other, and SettingError for a value that its field does not allow.
    """
    flat, names = dict(saved), {"sets": "settings", "models": "model"}
    for part in ("asked", "where", *Request.model_fields):
        inner = flat.pop(part, {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"`{part}` is not a mapping")
        flat |= inner
    return make_request(**{names.get(name, name): value for name, value in flat.items()})
