"""Accuracy by leaving out whole models and whole kinds of hardware: `python -m benchmarks.forecast.left_out`.

A group never informs its own forecast: constants are fitted to the rows of the others, from the middle of their bounds,
and a device that is left out has no measured shares, nor its architecture. `--write-errors` keeps the errors that plans
are printed with (`placements/errors.toml`). Not here: the sums over groups (`groups`).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt
from statistics import median

from benchmarks.forecast import collectives, kernels, memory, rl_phases, serving_throughput, sync
from benchmarks.forecast.__main__ import MEASURED, read
from benchmarks.forecast.fit_constants import MeasuredCase, calibrate
from benchmarks.forecast.groups import Axis, Held, Kind, Sample, held, scaled, table_text
from benchmarks.forecast.memory_rows import litgpt, titan
from benchmarks.forecast.memory_rows import prime as prime_memory
from benchmarks.forecast.report import Case, Row
from benchmarks.forecast.rl import tokens_of
from benchmarks.forecast.rl_rows import MEAN_SHARE, Read, read_end_to_end, read_nemo_rl
from benchmarks.forecast.rl_steps import problem_of, seconds_of, step, step_with
from benchmarks.forecast.rl_workloads import Workload
from benchmarks.forecast.serving import Served, cached, null_s, served
from benchmarks.forecast.serving import forecast_s as serving_s
from benchmarks.forecast.serving_models import QUANTISED, release
from benchmarks.forecast.training_case import Trained, forecast_s
from benchmarks.forecast.training_papers import paper
from benchmarks.forecast.training_rows import bridge, foundry, prime, vtrain
from flowgraph.models.table import full_name
from placements.hardware.architectures import AttainedShares, architecture, attained
from placements.hardware.device_profiles import DeviceProfile, profile
from placements.hardware.engine_constants import (
    ConstantBounds,
    EngineConstants,
    ServingConstants,
    TrainingConstants,
    bounds,
    constant_names,
    constants,
)
from placements.report.published_errors import FILE

AGAIN = "the engine's constants are fitted again to at most 100 rows of the other groups"
BY_HAND = "constants were set by hand; one scale from the other groups"
MOST = 100  # rows of a fit, chosen by a digest of what they say
LEAST_ROWS = 16  # of an engine, below which it has the constants that all engines share
FITTED_SHARES = (
    "matmul", "memory", "attention", "cached", "matmul_launch_s", "attention_launch_s", "block_s", "merge_s",
    "collective", "all_reduce", "all_to_all", "collective_launch_s", "step_s", "chunk_s",
)  # fmt: skip
"""Fields of `AttainedShares` that were fitted to the kernel tables; the others are of data sheets and papers."""
MEASURED_ARCHITECTURES = tuple(map(architecture, ("ampere", "hopper", "blackwell", "ada")))
SERVING_FITTED = (
    "step_s", "layer_s", "row_s", "request_s", "expert_layer_s", "expert_exchange_s", "expert_share",
)  # fmt: skip
SHARES = (1 / 32, 1 / 24, 1 / 16, 1 / 12, 1 / 8, 1 / 4)  # of the longest response, for a mean length

# ------------------------------------------------------------------------------------------------------------ devices


def unmeasured(device: DeviceProfile) -> DeviceProfile:
    """Return a device as if nobody had measured it or its architecture: medians of the other architectures."""
    own = _fitted(attained(replace(device, shares={})))
    others = [each for each in map(_fitted, MEASURED_ARCHITECTURES) if each != own]
    return replace(device, shares={name: median(each[name] for each in others) for name in FITTED_SHARES})


def _fitted(has: AttainedShares) -> dict[str, float]:
    return {name: getattr(has, name) for name in FITTED_SHARES}


def _by_axis(
    again: Callable[[Sample, DeviceProfile], float],
) -> Callable[[Sequence[Sample], Sequence[Sample], Axis], list[float]]:
    """Return a refit: of a device left out its medians of others, of a shape left out one scale from the others."""

    def refit(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
        if axis == "model":
            return scaled(kept, left, axis)
        return [again(each, unmeasured(each.case.device)) for each in left]

    return refit


@dataclass(frozen=True)
class _Measurement:
    """A row of a table of kernels on its device, and how it is forecast on one."""

    row: Row
    device: DeviceProfile
    forecast_ms: Callable[[Row, DeviceProfile], float]


def _again(sample: Sample, device: DeviceProfile) -> float:
    measurement: _Measurement = sample.case
    return measurement.forecast_ms(measurement.row, device)


def _kernel(
    name: str, title: str, file: str, group: Callable[[Row], str], least: float, measure: kernels.Measure
) -> Kind:
    found = list[Sample]()
    for row in read(MEASURED / file):
        device = kernels.measured_device(row["system"])
        if device is None:
            continue
        size, forecast_ms, null_ms = measure(row, device)
        if size >= least:
            case = _Measurement(row, device, lambda each, on: measure(each, on)[1])
            found.append(Sample(name, group(row), device.name, float(row["latency_ms"]), forecast_ms, null_ms, case))
    fitted = "a device has shares of its own; it is left out with its whole architecture, and a shape by one scale"
    return Kind(name, title, "ms", tuple(found), _by_axis(_again), fitted)


def products() -> Kind:
    """Return products of bfloat16, by their weights' shape."""
    group = lambda row: f"{row['n']} x {row['k']}"  # noqa: E731 - a name for each of three
    return _kernel(
        "products",
        "products of bfloat16, m ≥ 256",
        "gemm_bf16_measured.csv",
        group,
        kernels.LARGE_TOKENS,
        kernels.product,
    )


def attention() -> Kind:
    """Return attention that decodes, by its heads."""
    group = lambda row: f"{row['num_heads']} of {row['num_key_value_heads']}"  # noqa: E731
    return _kernel(
        "attention",
        "attention that decodes, caches ≥ 1 MB",
        "attn_decode_measured.csv",
        group,
        kernels.LARGE_BYTES,
        kernels.attention,
    )


def exchanges() -> Kind:
    """Return collectives of one machine, by their operation."""
    group = lambda row: row["op_name"]  # noqa: E731
    return _kernel(
        "collectives",
        "collectives of 2 to 8 devices, ≥ 1 MB",
        "nccl_measured.csv",
        group,
        collectives.LARGE_BYTES,
        collectives.collective,
    )


# ----------------------------------------------------------------------------------------------------------- training


def _training(name: str, title: str, file: str, reader: Callable[[Row], Trained | str], *, by_hand: bool) -> Kind:
    trained = [each for each in map(reader, read(MEASURED / file)) if isinstance(each, Trained)]
    samples = tuple(
        Sample(each.label, _model_of(each), each.links.device.name, each.seconds, _shipped_s(each), each.peak_s, each)
        for each in trained
    )
    return Kind(name, title, "s", samples, *((scaled, BY_HAND) if by_hand else (refit_training, AGAIN)))


def _model_of(row: Trained) -> str:
    name = re.sub(r"\(.*\)", "", row.name).strip()
    return full_name(name) or name


@cache
def _training_constants(engine: str, version: str) -> TrainingConstants:
    return constants(TrainingConstants, engine, version)


def _shipped_s(row: Trained) -> float:
    return forecast_s(_training_constants(row.engine, row.version), row)


def refit_training(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
    """Return forecasts with the engine's constants fitted to the kept rows, from the middle of their bounds.

    Where the kept rows are fewer than the constants, those of the engine get one scale.
    """
    first: Trained = left[0].case
    within = neutral(bounds(first.engine, first.version))
    rows = [_unmeasured_row(each, axis, left) for each in chosen(kept)]
    count = sum(each.low < each.high for name, each in within.items() if name in TrainingConstants.__dataclass_fields__)
    if len(rows) < count:
        return scaled(kept, left, axis)
    found = calibrate(TrainingConstants, first.engine, rows, forecast_s, within=within).constants
    return [forecast_s(found, _without_shares(each.case) if axis == "hardware" else each.case) for each in left]


def _unmeasured_row(sample: Sample, axis: Axis, left: Sequence[Sample]) -> MeasuredCase:
    """Return a kept row to fit to, on a device of an architecture that is left out without its measured shares."""
    row: Trained = sample.case
    hidden = axis == "hardware" and _same_architecture(row.links.device, left[0].case.links.device)
    return MeasuredCase(sample.label, sample.measured, _without_shares(row) if hidden else row)


def _without_shares(row: Trained) -> Trained:
    return replace(row, links=replace(row.links, device=unmeasured(row.links.device)))


def _same_architecture(one: DeviceProfile, other: DeviceProfile) -> bool:
    return _fitted(attained(replace(one, shares={}))) == _fitted(attained(replace(other, shares={})))


def neutral(shipped: Mapping[str, ConstantBounds]) -> dict[str, ConstantBounds]:
    """Return bounds whose values are their middles, so that a fit starts from nothing that was fitted before."""
    return {name: replace(each, value=(each.low + each.high) / 2) for name, each in shipped.items()}


def chosen(samples: Sequence[Sample], most: int = MOST) -> list[Sample]:
    """Return the samples that a fit reads: all, or those with the least digests of what they say."""
    return sorted(samples, key=lambda each: hashlib.sha256(each.label.encode()).digest())[:most]


# ------------------------------------------------------------------------------------------------------------ serving


def serving() -> Kind:
    """Return latencies of requests, of each measurement once."""
    found, seen = list[Sample](), set[object]()
    for place, row in enumerate(read(MEASURED / "serving_silicon_measured.csv")):
        each = served(row)
        if isinstance(each, str) or each.measurement in seen or cached(row):
            continue
        seen.add(each.measurement)
        forecast = serving_s(each)
        if forecast is not None:
            whole = forecast[0] + (each.response_tokens - 1) * forecast[1]
            model = QUANTISED.sub("", row["model_path"].rpartition("/")[2])
            found.append(
                Sample(f"{place} {model}", model, each.device.name, each.measured_s, whole, null_s(each), each)
            )
    fitted = (
        "an engine's seven constants are fitted again, from constants that all engines share; what"
        " `placements/time/decode.py` has of quantised products and all-reduces was set by hand and stays"
    )
    return Kind("serving", "latency of a serving request", "s", tuple(found), refit_serving, fitted)


def request_s(engine: ServingConstants, asked: Served) -> float:
    """Return the seconds of a request with these constants."""
    found = serving_s(asked, engine)
    if found is None:
        raise ValueError(f"{asked.device.name} has no peak for {asked.precision}")
    return found[0] + (asked.response_tokens - 1) * found[1]


def refit_serving(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
    """Return forecasts with constants fitted to the kept rows: of all engines first, then from there of each."""
    hidden = left[0].case.device if axis == "hardware" else None
    rows = [_served_row(each, hidden) for each in kept]
    shared = _fit_serving("vllm", "", rows, None)
    found = list[float]()
    by_engine = {name: _engine_constants(name, rows, shared) for name in sorted({each.case.engine for each in left})}
    for each in left:
        asked: Served = each.case if hidden is None else replace(each.case, device=unmeasured(each.case.device))
        found.append(request_s(by_engine[asked.engine], asked))
    return found


def _engine_constants(engine: str, rows: Sequence[MeasuredCase], shared: ServingConstants) -> ServingConstants:
    own = [each for each in rows if each.case.engine == engine]
    version = release(engine, "")
    if len(own) < LEAST_ROWS:
        return constants(ServingConstants, engine, version).moved(
            {name: getattr(shared, name) for name in SERVING_FITTED}
        )
    return _fit_serving(engine, version, own, shared)


def _fit_serving(
    engine: str, version: str, rows: Sequence[MeasuredCase], start: ServingConstants | None
) -> ServingConstants:
    shipped = bounds(engine, version)
    middle = neutral(shipped)
    within = {name: _start(name, each, middle[name], start) for name, each in shipped.items()}
    some = sorted(rows, key=lambda each: hashlib.sha256(each.label.encode()).digest())[:MOST]
    return calibrate(ServingConstants, engine, some, request_s, within=within, only=SERVING_FITTED).constants


def _start(
    name: str, shipped: ConstantBounds, middle: ConstantBounds, start: ServingConstants | None
) -> ConstantBounds:
    if name not in SERVING_FITTED:
        return shipped
    return middle if start is None else replace(shipped, value=getattr(start, name))


def _served_row(sample: Sample, hidden: DeviceProfile | None) -> MeasuredCase:
    asked: Served = sample.case
    if hidden is not None and _same_architecture(asked.device, hidden):
        asked = replace(asked, device=unmeasured(asked.device))
    return MeasuredCase(sample.label, sample.measured, asked)


def throughput() -> Kind:
    """Return tokens per second of TensorRT-LLM at saturation."""
    rows = read(MEASURED / "serving_trtllm_throughput.csv")
    cases = serving_throughput.throughput_cases(rows)
    return _cases(
        "throughput", "tokens per second, TensorRT-LLM", "1/s", zip(rows, cases, strict=True), "model", "gpu",
        BY_HAND,
    )  # fmt: skip


def _cases(
    name: str, title: str, unit: str, found: Iterable[tuple[Row, Case]], model: str, hardware: str, fitted: str
) -> Kind:
    samples = tuple(
        Sample(case.label, row[model], row[hardware], case.measured, case.forecast, case.null or case.forecast)
        for row, case in found
        if case.forecast and case.measured
    )
    return Kind(name, title, unit, samples, scaled, fitted)


def syncs() -> Kind:
    """Return syncs of weights."""
    rows = read(MEASURED / "weight_sync.csv")
    found = [(row, case) for row in rows for case in sync.cases_of([row])]
    return _cases("sync", "weight syncs", "s", found, "model", "gpu", BY_HAND)


# ------------------------------------------------------------------------------------------------------------- memory

MEMORY = (
    ("train_fsdp2_prime_rl.csv", prime_memory, "model", "gpu"),
    ("mem_litgpt.csv", litgpt, "model", "gpu"),
    ("train_measured_misc.csv", titan, "model", "gpu"),
)


def peaks() -> Kind:
    """Return peak memory of prime-rl, LitGPT and torchtitan."""
    found = list[Sample]()
    for file, reader, model, gpu in MEMORY:
        for row in read(MEASURED / file):
            each = reader(row)
            if isinstance(each, memory.Measured) and each.peak_bytes:
                sizes = (number / memory.GIB for number in (each.peak_bytes, each.forecast_bytes, each.null_bytes))
                hardware = f"{file.split('_')[0]} {row[gpu]}" if row[gpu][:1].isdigit() else row[gpu]
                found.append(Sample(each.label, row[model], hardware, *sizes))
    fitted = "what an allocator keeps and a logit takes were set by hand; one scale"
    return Kind("memory", "peak memory of training", "GiB", tuple(found), scaled, fitted)


# -------------------------------------------------------------------------------------------- reinforcement learning


@dataclass(frozen=True)
class StepConstants(EngineConstants):
    """Constants that only steps of RL tell, by hand as shipped and fitted again for each group that is left out."""

    rollout_step_s: float
    rollout_joined_s: float
    expert_read_share: float
    forward_share: float
    update_share: float

    @property
    def by_file(self) -> Mapping[str, Mapping[str, float]]:
        """Return them by the file that they are in."""
        return {
            file: {name: getattr(self, name) for name in constant_names(StepConstants) if name in bounds(file)}
            for file in ("vllm", "host")
        }


def nemo_rl() -> Kind:
    """Return steps of NeMo-RL, whose rows state their lengths."""
    steps = (each for each in _nemo_rl() if each.case.metric == "step")
    return Kind("rl_step", "RL steps, lengths stated (NeMo-RL)", "s", tuple(steps), refit_steps, REFITTED)


def nemo_rl_phases() -> Kind:
    """Return phases of NeMo-RL's steps: generation, log-probs, updates."""
    phases = (each for each in _nemo_rl() if each.case.metric != "step")
    return Kind("rl_phase", "RL phases, lengths stated (NeMo-RL)", "s", tuple(phases), refit_steps, REFITTED)


REFITTED = "five constants of RL steps are fitted again to the steps and phases of the other groups"


@cache
def _nemo_rl() -> tuple[Sample, ...]:
    """Return the steps of NeMo-RL's performance summary, and those with phases of its blog."""
    public = read(MEASURED / "rl_steps_public.csv")
    phases = (each for row in public if row["system"] == "NeMo RL" for each in rl_phases.reads(row))
    reads = [*(read_nemo_rl(row) for row in read(MEASURED / "rl_nemo_rl.csv")), *phases]
    return tuple(_rl(reads, guessed=False))


def refit_steps(_kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
    """Return forecasts with constants fitted to the steps and phases of all other groups, from the middle of bounds."""
    within = neutral({**bounds("vllm"), **bounds("host")})
    rows = [
        MeasuredCase(each.label, each.measured, each.case)
        for each in _nemo_rl()
        if each.group(axis) != left[0].group(axis)
    ]
    found = calibrate(StepConstants, "", rows, _moved_s, within=within).constants
    return [_moved_s(found, each.case) for each in left]


def _moved_s(moved: StepConstants, case: Read) -> float:
    found = step_with(case.workload, moved.by_file) if case.workload is not None else ""
    seconds = None if isinstance(found, str) else seconds_of(found, case.metric)
    if seconds is None:
        raise ValueError(f"{case.label} has no forecast")
    return seconds


def guessed() -> Kind:
    """Return steps and phases of verl and SkyRL, whose rows do not state a mean length or count tools."""
    reads = [read_end_to_end(row) for row in read(MEASURED / "rl_end2end.csv")]
    return Kind(
        "rl_guessed", "RL steps and phases, lengths guessed (verl, SkyRL)", "s", tuple(_rl(reads, guessed=True)),
        refit_lengths,
        "the mean length is guessed again from the framework's other groups, or is the middle of what it can be where"
        " there are none (verl); the host's constants were set by hand on verl's rows and stay",
    )  # fmt: skip


def _rl(reads: Iterable[Read], *, guessed: bool) -> Iterator[Sample]:
    for each in reads:
        if each.workload is None or not each.seconds or each.guessed != guessed:
            continue
        ours = _step_s(each.workload, each.metric)
        if ours:
            problem = problem_of(each.workload)
            peak = profile(problem.classes[0].model).peak_flops["bfloat16"]
            null = tokens_of(each.workload) * problem.shapes["policy"].active / (each.workload.devices * peak)
            model, hardware = each.workload.models["policy"], each.workload.cluster.split("x", 2)[2]
            yield Sample(f"{each.label}: {each.metric}", model, hardware, each.seconds, ours, null, each)


def _step_s(workload: Workload, metric: str) -> float | None:
    found = step(workload)
    return None if isinstance(found, str) else seconds_of(found, metric)


def refit_lengths(kept: Sequence[Sample], left: Sequence[Sample], axis: Axis) -> list[float]:
    """Return forecasts with a mean length that is guessed from the kept groups: the best of SHARES of the longest.

    Only rows of the same framework that state no mean count; without one, it is the middle of SHARES, as of constants.
    """
    return [_with_share(each, _share_of(kept, each.case.framework, axis)) for each in left]


def _share_of(kept: Sequence[Sample], framework: str, axis: Axis) -> float:
    rows = [each for each in kept if _guesses(each.case) and each.case.framework == framework]

    def miss(share: float) -> float:
        misses = dict[str, list[float]]()
        for each in rows:
            misses.setdefault(each.group(axis), []).append(abs(log(_with_share(each, share) / each.measured)))
        return median(median(each) for each in misses.values())

    return min(SHARES, key=miss) if rows else sqrt(SHARES[0] * SHARES[-1])


def _guesses(found: Read) -> bool:
    """Return whether a row states the longest response alone, so that its mean is a share of that."""
    return found.workload is not None and any("of the most" in each for each in found.workload.assumed)


def _with_share(sample: Sample, share: float) -> float:
    found: Read = sample.case
    if found.workload is None or not _guesses(found):
        return sample.forecast
    mean, most = (float(each.partition("=")[2]) for each in found.workload.response_tokens.split(","))
    lengths = f"mean={mean * share / MEAN_SHARE:g},max={most:g}"
    return _step_s(replace(found.workload, response_tokens=lengths), found.metric) or sample.forecast


# -------------------------------------------------------------------------------------------------------------- all

KINDS: Mapping[str, Callable[[], Kind]] = {
    "products": products,
    "attention": attention,
    "collectives": exchanges,
    "memory": peaks,
    "serving": serving,
    "throughput": throughput,
    "training_vtrain": lambda: _training(
        "training_vtrain",
        "training, Megatron-DeepSpeed (vTrain)",
        "train_vtrain_groundtruth.csv",
        vtrain,
        by_hand=False,
    ),
    "training_foundry": lambda: _training(
        "training_foundry", "training, MPT on FSDP (llm-foundry)", "train_fsdp_llmfoundry.csv", foundry, by_hand=False
    ),
    "training_bridge": lambda: _training(
        "training_bridge", "training, Megatron-Bridge", "train_megatron_bridge.csv", bridge, by_hand=False
    ),
    "training_prime": lambda: _training(
        "training_prime", "training, prime-rl on FSDP2", "train_fsdp2_prime_rl.csv", prime, by_hand=True
    ),
    "training_papers": lambda: _training(
        "training_papers", "training, single papers", "train_measured_misc.csv", paper, by_hand=True
    ),
    "sync": syncs,
    "rl_step": nemo_rl,
    "rl_phase": nemo_rl_phases,
    "rl_guessed": guessed,
}


SHIPPED: Mapping[str, tuple[str, str]] = {
    "step": ("rl_step", "steps"),
    "generate": ("serving", "requests"),
    "update": ("training_bridge", "steps"),
    "sync": ("sync", "syncs"),
    "memory": ("memory", "peaks"),
}
"""The kinds whose errors are printed with plans, by what a plan calls them, and what a row of each is."""
COMMAND = "python -m benchmarks.forecast.left_out --write-errors"


def errors_text(found: Mapping[str, Held]) -> str:
    """Return the errors of kinds as TOML, each the larger of a model and of hardware left out."""
    lines = [
        "# Errors of forecasts on published rows, with whole models, or whole kinds of hardware, left out of the fit:",
        "# the worse of the two. `median` is of sizes, `low` and `high` are the tenth and the ninetieth hundredth.",
        f"# Written by `{COMMAND}`; docs/forecast.md.",
        "",
        f'source = "{COMMAND}"',
    ]
    for name, (kind, noun) in SHIPPED.items():
        held_out, samples = found[kind].worse, found[kind].kind.samples
        lines += ["", f"[{name}]", f'of = "{found[kind].kind.title}"', f'noun = "{noun}"', f"rows = {len(samples)}"]
        lines += [f"models = {len({each.model for each in samples})}"]
        lines += [f"devices = {len({each.hardware for each in samples})}"]
        lines += [f"{each} = {getattr(held_out, each):.3f}" for each in ("median", "low", "high")]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table of the kinds that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-errors", action="store_true", help=f"write {FILE.name}, of the kinds that it has")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[], help="all unless some are named")
    asked = parser.parse_args()
    needed = [kind for kind, _ in SHIPPED.values()] if asked.write_errors else []
    names: list[str] = list(dict.fromkeys([*(asked.kinds or needed or KINDS), *needed]))
    found = list[Held]()
    for name in names:
        found.append(held(KINDS[name]()))
        print(f"{name} is done", file=sys.stderr)
    print(table_text(found))
    if asked.write_errors:
        FILE.write_text(errors_text({each.kind.name: each for each in found}), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
