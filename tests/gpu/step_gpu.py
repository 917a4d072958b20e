"""GRPO steps in the hybrid placement on one device: what `test_step_gpu` runs in a process of its own.

`step_gpu.py FOLDER DEVICE` makes a model with random weights in FOLDER, hosts it there for training by `fsdp` on one
rank in bfloat16 and for sampling by `local`, runs a few steps, and writes what was seen to FOLDER/told.json. On "cuda"
the model is a Llama of 0.5B parameters; on "cpu" it is a tiny one, so that all of this runs without a GPU too.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.app import make_request
from flowgraph.app.planning.flow_inputs import compiled_flow
from flowgraph.app.planning.problem import PreparedProblem, cluster_of, prepare
from flowgraph.app.request import Workload
from flowgraph.app.running.run_report import TaskComparison, compare_tasks
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool, RoleSettings
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.models import resolve
from flowgraph.models.sizes import shape
from flowgraph.runtime.hosting import ModelSetup, heads_of, host
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.measure.measured_step import MeasuredStep, measured_step
from flowgraph.runtime.measure.measured_task import Measures, note_process
from flowgraph.runtime.places import RowSource
from placements import forecast

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Completion, Handle, ResponseRows
    from placements.hardware.device_profiles import DeviceProfile

DeviceName = Literal["cpu", "cuda"]
FLOW, STEPS, SEED, LIMIT_S = "grpo", 3, 5, 120.0
POOL, MODELS = "all", ("policy", "ref")
TRAINING = RoleSettings(precision="bfloat16", sleeps=True)
RULE = Path(__file__).with_name("even_samples.py")


@dataclass(frozen=True)
class Case:
    """A model's sizes, as transformers' LlamaConfig names them, and the rows of a step."""

    sizes: Mapping[str, int]
    prompts: int
    prompt_tokens: int
    samples: int
    response_tokens: int
    micro_batch_tokens: int

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the flow's settings as a command line says them."""
        sampling = f"policy.generate.n={self.samples}", f"policy.generate.max_tokens={self.response_tokens}"
        learning = "policy.update.lr=1e-4", f"policy.update.micro_batch_tokens={self.micro_batch_tokens}"
        return (*sampling, "policy.generate.temperature=0.8", f"score.by={RULE}:even", *learning)


LARGE = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
}
TINY = LARGE | {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
CASES = {"cuda": Case(LARGE, 4, 64, 8, 128, 2048), "cpu": Case(TINY, 2, 12, 4, 8, 128)}


# ------------------------------------------------------------------------------------------- model, plan, rows


def make_folder(case: Case, folder: Path) -> Path:
    """Write a Llama with random weights, as transformers draws them, and a tokenizer of 20 characters."""
    import torch

    from flowgraph.models import tiny
    from flowgraph.models.libraries import seeded, transformers
    from flowgraph.models.saving import save

    _, tokenizer = tiny.build(SEED)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers().LlamaConfig(**case.sizes, **ids, tie_word_embeddings=False)
    with seeded(SEED):
        model = transformers().LlamaForCausalLM(config)
    return save(model.to(dtype=torch.float32), tokenizer, folder)


def speeds(name: str, memory_bytes: int) -> str:
    """Return the known kind of GPU that torch's name of one names, of several the one nearest in memory; "" if none."""
    from placements.hardware.device_profiles import profiles

    plain, known = re.sub("[^a-z0-9]", "", name.lower()), profiles()
    kinds = {kind for kind in (each.partition("-")[0] for each in known) if kind in plain}
    longest = max(kinds, key=len, default=None)  # "h20" is in "h200" as well
    alike = [each for each in known.values() if each.name.partition("-")[0] == longest]
    on_pcie = "pcie" in plain

    def unlike(each: DeviceProfile) -> tuple[bool, int]:
        return ("pcie" in each.name) is not on_pcie, abs(each.memory_bytes - memory_bytes)

    return min(alike, key=unlike).name if alike else ""


def device_here(device: DeviceName) -> tuple[str, str, str]:
    """Return the device's name, the cluster that it is, and that of known speed, "" if none.

    A CPU has no forecast of seconds; there an H100 stands in, so that the forecast is made.
    """
    import torch

    if device == "cpu":
        return "CPU, its seconds forecast as if it were an H100", "1xcpu", "1xh100"
    told: Any = torch.cuda.get_device_properties(0)
    memory_bytes = int(told.total_memory)
    known = speeds(str(told.name), memory_bytes)
    return str(told.name), f"1xgpu-{memory_bytes // 2**30}GiB", known and f"1x{known}"


def hybrid(graph: Graph, cluster: str) -> Plan:
    """Return the plan in which what trains and what samples take turns on one device, and sleep in between."""
    shards = Layout(sharding="full")
    there = cluster_of(cluster)
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=there,
        pools=(Pool(name=POOL, devices=((there.nodes[0].name, 0),)),),
        placed=(
            PlacedRole(role="policy.train", pool=POOL, engine="fsdp", layout=shards, running=TRAINING),
            PlacedRole(role="policy.sample", pool=POOL, engine="local", running=RoleSettings(sleeps=True)),
            PlacedRole(role="ref.infer", pool=POOL, engine="local"),
        ),
    )


def posed_of(case: Case, model: Path, cluster: str) -> PreparedProblem:
    """Pose what a command line asks of the planner for these rows."""
    request = make_request(
        flow=FLOW,
        model=str(model),
        batch=case.prompts,
        settings=case.settings,
        cluster=cluster,
        prompt_tokens=case.prompt_tokens,
    )
    return prepare(request)


def planned(case: Case, graph: Graph, model: Path, places: tuple[str, str]) -> Plan:
    """Return hybrid plan with the forecast of its memory here, and of its seconds if the device's speed is known."""
    here, known = (_forecast(case, graph, model, cluster) if cluster else None for cluster in places)
    assert here is not None
    return here.model_copy(update={"step": known.step if known is not None else None})


def _forecast(case: Case, graph: Graph, model: Path, cluster: str) -> Plan:
    """Return the hybrid plan with its forecast on a cluster of one device."""
    posed = posed_of(case, model, cluster)
    return forecast(posed.problem, hybrid(graph, cluster), posed.assumed)


def prompts_of(case: Case) -> RowSource:
    """Return rows whose prompts have all the tokens that the case says: <bos>, digits and <sep>."""
    import pyarrow as pa

    from nodes.data.source import PromptSource

    count, digits = STEPS * case.prompts, case.prompt_tokens - 2
    texts = ["".join(str((7 * row + place) % 10) for place in range(digits)) for row in range(count)]
    rows = [{"prompt": [{"role": "user", "content": text}], "ground_truth": ""} for text in texts]
    return PromptSource(pa.Table.from_pylist(rows), case.prompts, SEED)


# ------------------------------------------------------------------------------------------- steps


@dataclass(eq=False)
class Noting(InProcess):
    """Places in this process that note what torch had allocated on a GPU before and after each switch."""

    def __post_init__(self) -> None:
        self.switched = list[tuple[str, bool, int, int]]()

    def switch(self, home: Home, *, awake: bool) -> None:
        """Let what a home holds leave its device, or come back; note what that did."""
        before = allocated_bytes()
        super().switch(home, awake=awake)
        self.switched.append((home.engine, awake, before, allocated_bytes()))


def allocated_bytes() -> int:
    """Return what torch has allocated on the GPU; 0 without one."""
    import torch

    return int(torch.cuda.memory_allocated()) if torch.cuda.is_available() else 0


def run_steps(
    executor: Executor, program: Program, source: RowSource
) -> tuple[list[MeasuredStep], list[dict[str, float]]]:
    """Run the steps; give what was measured of each, and its metrics."""
    measured, metrics = list[MeasuredStep](), list[dict[str, float]]()
    for step in range(STEPS):
        began = time.perf_counter()
        observed = executor.run(program, {"prompts": source}, Key(SEED, step)).observed
        measured.append(measured_step(step, observed.measured, program, time.perf_counter() - began))
        metrics.append(observed.means())
    return measured, metrics


def synced(executor: Executor, places: InProcess, program: Program) -> dict[str, Any]:
    """Bring the newest weights to what samples; say how far the two copies and what they compute are apart."""
    task = next(task for task in program.tasks if isinstance(task, Sync))
    executor.switch(program, task.source, awake=True)
    executor.switch(program, task.target, awake=True)
    trainer, sampler = places.handles[task.source], places.handles[task.target]
    late = far_weights(trainer, sampler)
    places.sync(task, executor.versions[task.source])
    told = {"versions": [trainer.version, sampler.version], "late": late, "weights": far_weights(trainer, sampler)}
    return told | agreement(trainer, sampler)


def far_weights(one: Handle, other: Handle) -> float:
    """Return the largest difference between two copies of weights."""
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def agreement(trainer: Handle, sampler: Handle) -> dict[str, Any]:
    """Draw samples and read them by both copies: the differences of log-probs [all tokens], the largest and the mean.

    `drawn` is what the sampler says while it draws against its own forward pass, both float32; `read` is that forward
    pass against the trainer's, which computes in bfloat16.
    """
    import torch

    from flowgraph.language.handle import SampleRequest, gather

    contexts = [(1, *(5 + (3 * row + place) % 10 for place in range(9 + row)), 4) for row in range(4)]
    drawn = gather(
        sampler, [SampleRequest(each, row, 0, 12, 0.7, Key(SEED, 0, "x")) for row, each in enumerate(contexts)]
    )
    rows = rows_of(contexts, drawn)
    with torch.no_grad():
        told = [handle.token_stats(rows, ("logprobs",)).logprobs for handle in (trainer, sampler)]
    theirs, ours = (inside(each, rows) for each in told)
    said = torch.tensor([each for completion in drawn for each in completion.logprobs])
    return {"tokens": len(said), "drawn": apart(said, ours), "read": apart(theirs, ours)}


def rows_of(contexts: Sequence[Sequence[int]], drawn: Sequence[Completion]) -> ResponseRows:
    """Return completions of these contexts as rows, drawn at a temperature of 0.7."""
    import pyarrow as pa
    import torch

    from flowgraph.language.handle import ResponseRows

    lengths = torch.tensor([len(each.tokens) for each in drawn])
    tokens = torch.zeros(len(drawn), int(lengths.max()), dtype=torch.int64)
    for row, each in enumerate(drawn):
        tokens[row, : len(each.tokens)] = torch.tensor(each.tokens)
    return ResponseRows(pa.array(list(map(list, contexts)), pa.list_(pa.int32())), tokens, lengths, 0.7)


def inside(stats: Tensor | None, rows: ResponseRows) -> Tensor:
    """Return the statistics of all response tokens, row by row."""
    import torch

    assert stats is not None
    return torch.cat([stats[row, :length].float().cpu() for row, length in enumerate(rows.lengths.tolist())])


def apart(one: Tensor, other: Tensor) -> dict[str, float]:
    """Return the largest and the mean difference."""
    differences = (one - other).abs()
    return {"most": float(differences.max()), "mean": float(differences.mean())}


# ------------------------------------------------------------------------------------------- what is told


@dataclass(frozen=True)
class Row:
    """One task: seconds of a step, the median of the steps, and the highest peak in bytes; None where not known.

    Peaks are without what the process itself takes. What is forecast of them is an upper bound.
    """

    task: str
    measured_s: float | None
    forecast_s: float | None
    measured_bytes: int | None
    forecast_bytes: int | None


def rows_told(found: Sequence[TaskComparison], steps: Sequence[MeasuredStep], plan: Plan) -> Iterator[Row]:
    """Yield each task as measured and as forecast; a plan counts syncs to the phase that they come before, generation.

    A plan has no forecast of its own for what goes to sleep or wakes.
    """
    own, measured = plan.forecast[0], steps[-1].forecast[0]
    generating = next(each.memory_bytes for each in own.peaks if each.phase == "generate")
    for each in found:
        forecast = generating if each.task.startswith("sync ") else each.forecast_bytes
        yield Row(
            each.task,
            each.measured_s,
            each.forecast_s,
            None if each.measured_bytes is None else each.measured_bytes - measured.process_bytes,
            None if forecast is None else forecast - own.process_bytes,
        )


def table(told: Mapping[str, Any]) -> str:
    """Write the rows as lines: seconds and GiB, measured and forecast."""
    heads = ("task", "measured s", "forecast s", "measured GiB", "forecast GiB")
    lines = [heads, *(_cells(Row(**each)) for each in told["rows"])]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    aligned = ("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)
    model = f"{told['parameters'] / 1e9:.2f}B parameters, {told['tokens']:,} tokens drawn a step"
    return "\n".join([f"{told['device']}, torch {told['torch']}: {model}", *aligned])


def _cells(row: Row) -> tuple[str, ...]:
    seconds = ("" if each is None else f"{each:.3f}" for each in (row.measured_s, row.forecast_s))
    memory = ("" if each is None else f"{each / 2**30:.2f}" for each in (row.measured_bytes, row.forecast_bytes))
    return (row.task, *seconds, *memory)


def run(folder: Path, device: DeviceName) -> dict[str, Any]:
    """Run the case of a device, and give all that was seen."""
    import torch
    import transformers

    from flowgraph.engines.fsdp.ranks import join

    case, (name, *places) = CASES[device], device_here(device)
    graph = compiled_flow(Workload(flow=FLOW, settings=case.settings))
    model = make_folder(case, folder / "model")
    plan = planned(case, graph, model, (places[0], places[1]))
    program = lower(graph, plan)

    note_process(device)
    ranks = join(0, 1, folder / "meeting", device=device, limit_s=LIMIT_S)
    source = resolve(str(model), cache=folder)
    setup = ModelSetup(dict.fromkeys(MODELS, source), SEED, folder, heads=heads_of(graph))
    handles, _ = host(program.homes, program.trained, setup, device=device, ranks=dict.fromkeys(program.homes, ranks))
    noting = Noting(handles, measures=Measures(device=device))
    executor = Executor(noting)
    steps, metrics = run_steps(executor, program, prompts_of(case))
    switched, told = list(noting.switched), synced(executor, noting, program)
    noting.close()
    ranks.leave()
    return {
        "on": device,
        "device": name,
        "speeds": places[1],
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "parameters": shape(source).parameters,
        "tokens": case.prompts * case.samples * case.response_tokens,
        "process_bytes": {"forecast": plan.forecast[0].process_bytes, "measured": steps[-1].forecast[0].process_bytes},
        "rows": [asdict(each) for each in rows_told(list(compare_tasks(plan, steps)), steps, plan)],
        "metrics": metrics,
        "switched": switched,
        "synced": told,
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    seen = run(place, cast("DeviceName", sys.argv[2]))
    (place / "told.json").write_text(json.dumps(seen, indent=1) + "\n", "utf-8")
