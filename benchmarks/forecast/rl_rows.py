"""From rows of published runs to workloads: by their columns alone, and where one says too little, what is missing.

What rows of a format leave out is assumed alike for all of them, here and nowhere else. Not here: forecasts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.forecast.report import Row
from benchmarks.forecast.rl_names import (
    Degrees,
    Placing,
    degrees,
    device,
    engine,
    listed_degrees,
    machine_devices,
    model,
    placing,
)
from benchmarks.forecast.rl_recipes import recipe_of
from benchmarks.forecast.rl_workloads import Seated, Workload
from placements.hardware.device_profiles import DeviceProfile

FLOWS = "benchmarks/forecast/rl_flows.py"
PROMPT_TOKENS = 128  # of a problem in words with its instruction, where a row does not say
MEAN_SHARE = 1 / 16
"""Of the most tokens of a response, the mean, where a row gives only the most: a guess, and held apart for that."""
AGENTIC = re.compile(r"search|agent|tool|turn|swe", re.IGNORECASE)  # rows hold more than prompt and response
# The models of an algorithm; one that is none of these has a policy and rewards by rule, as DAPO.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "PPO": ("policy", "critic", "ref"),
    "GRPO": ("policy", "ref"),
    "DAPO": ("policy",),
}
TOGETHER, DRAW, TRAIN = "all", "draw", "train"


@dataclass(frozen=True)
class Read:
    """A row as read: what is compared, in seconds, of which run; None and `why` where the row says too little.

    `guessed` says that a length was guessed. `pair` is what runs that differ in their placement alone share.
    """

    label: str
    framework: str
    metric: str
    seconds: float | None
    workload: Workload | None = None
    placed: Placing | None = None
    why: str = ""
    guessed: bool = False
    pair: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------- runs with a clock


def read_end_to_end(row: Row) -> Read:
    """Read a row of one phase or step of a run."""
    placed = placing(row["placement_mode"])
    told = Read(
        label=" ".join(row[each] for each in LABEL),
        framework=row["framework"],
        metric=row["metric"],
        seconds=_seconds(row),
        placed=placed,
        pair=tuple(row[each] for each in LABEL if each != "placement_mode"),
    )
    missing = _missing(row, placed)
    if missing:
        return replace(told, why=missing)
    run = _run(row, placed, told.label)
    if isinstance(run, str):
        return replace(told, why=run)
    return replace(told, workload=run[0], guessed=run[1])


def _seconds(row: Row) -> float | None:
    """Return the seconds of a row: of many steps, of one of them; None where it is no time."""
    value = float(row["value"])
    if row["unit"] == "s":
        return value
    many = re.fullmatch(r"time_(\d+)_steps", row["metric"])
    return value * 3600 / int(many[1]) if many and row["unit"] == "h" else None


LABEL = ("framework", "algorithm", "model", "n_gpus", "gpu", "placement_mode", "train_backend", "max_resp_len")
CLOCKED = re.compile(r"step|gen|generate_sequences|rollout|generation|old_log_prob|ref|ref_log_prob|values|update_actor"
                     r"|update_critic|policy_train|forward_pass.*|time_\d+_steps")  # fmt: skip


def _missing(row: Row, placed: Placing) -> str:
    """Return what of a row cannot be compared at all."""
    if row["quality"] not in ("table", "svg-exact"):
        return f"read off a figure ({row['quality']})"
    if _seconds(row) is None:
        return f"no seconds ({row['unit']})"
    if not CLOCKED.fullmatch(row["metric"]):
        return f"metric {row['metric']}"
    if placed.why:
        return placed.why
    if placed.lag and row["metric"] == "gen":
        return "gen: of runs that overlap, how long the trainer waits"
    return ""


def _run(row: Row, placed: Placing, label: str) -> tuple[Workload, bool] | str:
    """Return run of a row, and whether a length of it was guessed; where the row says too little, what is missing."""
    kind, found, lengths = device(row["gpu"]), model(row["model"]), _lengths(row)
    counts = [_whole(row[each]) for each in ("n_gpus", "prompts_per_step", "samples_per_prompt")]
    names = ("device", "model", "lengths", "devices", "prompts of a step", "samples of a prompt")
    missing = [name for name, each in zip(names, (kind, found, lengths, *counts), strict=True) if not each]
    if missing or kind is None or found is None or lengths is None:
        return f"no {', '.join(missing)}"
    devices, prompts, samples = (each or 0 for each in counts)
    machine = machine_devices(kind)
    if devices > machine and devices % machine:
        return f"{devices} devices are no machines of {machine}"
    name = next((each for each in ALGORITHMS if each in row["algorithm"].upper()), "DAPO")
    critic = "critic" in ALGORITHMS[name]
    trains, draws = engine(row["train_backend"], "fsdp"), engine(row["rollout_backend"], "vllm")
    workload = Workload(
        label=label,
        source=row["source"],
        framework=row["framework"],
        flow=f"{FLOWS}:{name.casefold()}",
        models=dict.fromkeys(ALGORITHMS[name], found),
        cluster=cluster_text(devices, kind),
        batch=prompts * (samples if critic else 1),
        prompt_tokens=lengths.prompt,
        response_tokens=lengths.response,
        settings=tuple(_settings(row, placed, samples, critic=critic)),
        engines={"train": trains, "sample": draws, "infer": trains},
        streamed=placed.streamed,
        assumed=lengths.assumed,
    )
    return _placed(workload, placed, degrees(row["parallelism"]), degrees(row["rollout_backend"])), lengths.guessed


def cluster_text(devices: int, kind: DeviceProfile) -> str:
    """Return so many devices as `--cluster` takes them: whole machines, or a part of one."""
    machine = machine_devices(kind)
    return f"{max(1, devices // machine)}x{min(devices, machine)}x{kind.name}"


def _settings(row: Row, placed: Placing, samples: int, *, critic: bool) -> Iterator[str]:
    """Yield the settings of a row's flow; PPO draws one response to a prompt, and reads log-probs again always."""
    yield f"lag={placed.lag}"
    if not critic:
        yield f"samples={samples}"
        yield from ["read_again=false"] * placed.streamed
    minibatch = re.search(r"mini[-_ ]?batch\w* (\d+)", row["note"])
    if minibatch:
        yield f"policy.update.minibatch={minibatch[1]}"


def _whole(text: str) -> int | None:
    """Read a whole number, also one in words: `(n_samples per recipe 5)`."""
    found = re.findall(r"\d+", text or "")
    return int(found[-1]) if found else None


@dataclass(frozen=True)
class _Lengths:
    """Both lengths as texts, what was assumed of them, and whether that is a guess that decides."""

    prompt: str
    response: str
    assumed: tuple[str, ...]
    guessed: bool


def _lengths(row: Row) -> _Lengths | None:
    """Read the lengths of a row; None where it gives neither the mean nor the most of a response."""
    most, mean, prompt = _whole(row["max_resp_len"]), _number(row["mean_resp_len"]), _number(row["prompt_len"])
    tools, assumed = AGENTIC.search(row["algorithm"]) is not None, list[str]()
    if most is None and mean is None:
        return None
    assumed += ["what tools return is not counted"] if tools else []
    assumed += [f"prompts of {PROMPT_TOKENS} tokens"] if prompt is None else []
    assumed += [f"responses of {MEAN_SHARE:g} of the most, on average"] if mean is None else []
    guessed, prompt = tools or mean is None, prompt or PROMPT_TOKENS
    if mean is None:
        mean = (most or 0) * MEAN_SHARE
    elif "per sample" in row["note"]:  # of the prompt and the response together
        mean = max(1.0, mean - prompt)
    response = f"{mean:g}" if most in (None, mean) else f"mean={mean:g},max={most}"
    return _Lengths(f"{prompt:g}", response, tuple(assumed), guessed)


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[\d.]+", text or "") else None


# ------------------------------------------------------------------------------------------- NeMo-RL's own table


def read_nemo_rl(row: Row) -> Read:
    """Read a row of NeMo-RL's performance summary: one step of a run, whose placement says only how late weights are.

    Its average length is that of responses: tokens that were trained on, over responses, are 100 to 130 more.
    """
    recipe = recipe_of(row)
    placed = placing(row["policy_mode"])
    if recipe.draws is not None:
        placed = replace(placed, draw=recipe.draws, train=int(row["gpus"]) - recipe.draws)
    label = " ".join(row[each] for each in ("version", "algorithm", "model", "policy_mode", "gpus", "gpu", "precision"))
    pair = tuple(row[each] for each in ("version", "algorithm", "model", "gpu", "precision", "max_seq_len"))
    told = Read(f"NeMo-RL {label}", "NeMo-RL", "step", float(row["step_time_s"]), placed=placed, pair=pair)
    kind, found, cut = device(row["gpu"]), model(row["model"]), listed_degrees(row["train_tp_cp_ep_pp_vpp"])
    drawn = re.findall(r"\d+", row["gen_tp_pp"])
    missing = [
        name
        for name, each in {"device": kind, "model": found, "layout": cut and all(map(int, drawn))}.items()
        if not each
    ]
    if missing or kind is None or found is None or placed.why:
        return replace(told, why=placed.why or f"no {', '.join(missing)}")
    prompts, most = max(1, int(row["gen_gbs"]) // recipe.samples), int(row["max_seq_len"]) - PROMPT_TOKENS
    workload = Workload(
        label=told.label,
        source=row["source"],
        framework="NeMo-RL",
        flow=f"{FLOWS}:{row['algorithm'].lower()}",
        models={"policy": found, "ref": found},
        cluster=cluster_text(int(row["gpus"]), kind),
        batch=prompts,
        prompt_tokens=str(PROMPT_TOKENS),
        response_tokens=f"mean={row['avg_seq_len']},max={most}",
        settings=(
            f"samples={recipe.samples}",
            f"lag={placed.lag}",
            f"policy.update.minibatch={max(1, int(row['train_gbs']) // recipe.samples)}",
        ),
        engines={"train": "megatron", "sample": "vllm", "infer": "megatron"},
        precision="fp8" if row["precision"] == "fp8" else "bfloat16",
        streamed=placed.lag > 0 and recipe.in_flight,
        checkpointing="full" if recipe.checkpointing else "",
        assumed=(f"prompts of {PROMPT_TOKENS} tokens",),
    )
    sampled = Degrees(tensor=int(drawn[0]), pipeline=int(drawn[1])) if len(drawn) > 1 else None
    return replace(told, workload=_placed(workload, placed, cut, sampled))


# ------------------------------------------------------------------------------------------- where roles run


def _placed(workload: Workload, placed: Placing, train: Degrees | None, sample: Degrees | None) -> Workload:
    """Return a run with its pools: one for all, or one that draws beside one that does the rest.

    Where a row does not say how many devices draw, half of them do.
    """
    names, devices = _role_names(workload), workload.devices
    if placed.form == "together":
        pools = {TOGETHER: devices}
        groups = {name: Seated(TOGETHER, sample if _draws(name) else train) for name in names}
        return replace(workload, pools=pools, roles=groups)
    parts = placed.draw or 1, placed.train or 1  # devices, or shares of them
    draw = max(1, round(devices * parts[0] / sum(parts)))
    halved = () if placed.draw else ("half of the devices draw",)
    pools = {DRAW: draw, TRAIN: devices - draw}
    groups = {name: Seated(DRAW, sample) if _draws(name) else Seated(TRAIN, train) for name in names}
    return replace(workload, pools=pools, roles=groups, assumed=(*workload.assumed, *halved))


def _draws(role: str) -> bool:
    return role.endswith(".sample")


def _role_names(workload: Workload) -> list[str]:
    """Name the roles of one of our flows by its models: what is trained, the policy's drawing, what is read."""
    uses: Mapping[str, Sequence[str]] = {"policy": ("train", "sample"), "critic": ("train",)}
    return [f"{name}.{use}" for name in workload.models for use in uses.get(name, ("infer",))]


def runs(reads: Sequence[Read]) -> Iterator[Workload]:
    """Yield each run once, with all that was measured of it."""
    found = dict[str, Workload]()
    for each in reads:
        if each.workload is None or each.seconds is None:
            continue
        before = found.setdefault(each.workload.file, each.workload)
        found[each.workload.file] = replace(before, measured={**before.measured, each.metric: each.seconds})
    yield from found.values()
