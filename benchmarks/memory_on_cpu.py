"""Hold the forecast of memory on CPU devices against ten runs: `python -m benchmarks.memory_on_cpu`.

Of each pool the forecast peak is held against the largest resident set that a process of its devices had in any task of
three steps. Ray's own processes are left out on both sides, and are held against their constant in a column of their
own: what they have resident, each page counted once. Responses reach their full length: models made here give their end
token no chance, and prompts are as long as the plan takes them to be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]  # so that `python benchmarks/memory_on_cpu.py` works too

from flowgraph.app.planning.problem import prepare_from  # noqa: E402 - after the path above
from flowgraph.cluster.plan import Plan  # noqa: E402
from placements.memory.footprint import MemoryConstants  # noqa: E402
from placements.search.plan_builder import forecast_again  # noqa: E402

STEPS, SEED, LIMIT_S = 3, 5, 900.0
MIB = 2**20
DEVICE = re.compile(r"ray::(?!.*host)", re.IGNORECASE)
"""The processes of devices, as Ray names them."""

PROMPT_CHARACTERS, PROMPTS, ANSWER_TOKENS = 69, 32, 128
"""So long that a plan's estimate for any tokenizer and the tokens of ours, one a character, are the same."""


@dataclass(frozen=True)
class Case:
    """One run: its flow, the model's name in `SIZES` or of a shipped one, the cluster, and what else is said."""

    flow: str
    model: str
    cluster: str = "1xcpu"
    placement: str = "colocated"
    batch: int = 8
    samples: int = 4
    tokens: int = 64
    more: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.flow} {self.model} {self.cluster} {self.placement}"


@dataclass(frozen=True)
class Compared:
    """One pool of a run: bytes as forecast and as measured, and those of Ray's own processes (0 without Ray)."""

    case: str
    pool: str
    phase: str
    forecast_bytes: int
    measured_bytes: int
    ray_forecast_bytes: int = 0
    ray_measured_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Return the forecast as a multiple of what was measured."""
        return self.forecast_bytes / max(1, self.measured_bytes)


SIZES: Mapping[str, Mapping[str, int]] = {
    "5M": {
        "vocab_size": 4000,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
    },
    "22M": {
        "vocab_size": 16000,
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "58M": {
        "vocab_size": 32000,
        "hidden_size": 640,
        "intermediate_size": 1792,
        "num_hidden_layers": 4,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "max_position_embeddings": 1024,
    },
}
"""Sizes of Llamas with random weights, as transformers' LlamaConfig names them."""

CASES = (
    Case("grpo", "tiny", batch=16, samples=8, tokens=24),
    Case("grpo", "5M", batch=16),
    Case("grpo", "22M", "2xcpu", batch=4),
    Case("grpo", "22M", "1xcpu", batch=4, more=("+lora=8",)),
    Case("ppo", "5M", "3xcpu", "split"),
    Case("ppo", "22M", "1xcpu", batch=2, samples=8, tokens=32),
    Case("gpg", "58M", "1xcpu", batch=2, samples=4, tokens=32),
    Case("gpg", "5M", "4xcpu", "split"),
    Case("sft", "22M", "2xcpu", tokens=0, settings=(f"policy.demonstrations.max_tokens={ANSWER_TOKENS}",)),
    Case("grpo", "5M", "1xcpu", tokens=128, settings=("policy.update.micro_batch_tokens=2048",)),
)


def main() -> int:
    """Run each case in a fresh process and print the table; returns 1 if a forecast misses its bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="*", help="places of cases, from 0")
    parser.add_argument("--work", type=Path, help="a folder that stays: models and runs")
    parser.add_argument("--again", action="store_true", help="forecast the runs in --work again, and run none of them")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        chosen = [CASES[place] for place in options.only] if options.only else CASES
        found = list[Compared]()
        for case in chosen:
            for each in compared(case, work, again=options.again):
                print(line(each), flush=True)
                found.append(each)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) | {"ratio": each.ratio} for each in found], indent=1), "utf-8")
    ratios = [each.ratio for each in found]
    print(f"forecast / measured: {min(ratios):.2f} to {max(ratios):.2f}")
    return int(min(ratios) < 1 or max(ratios) > 1.3)


def line(each: Compared) -> str:
    """Return one line of the table, in MiB."""
    ray = f"  Ray {each.ray_forecast_bytes / MIB:5.0f} {each.ray_measured_bytes / MIB:5.0f}" * bool(
        each.ray_measured_bytes
    )
    told = f"{each.forecast_bytes / MIB:7.0f} {each.measured_bytes / MIB:7.0f} {each.ratio:5.2f}"
    return f"{each.case:36} {each.pool:12} {each.phase:10} {told}{ray}"


def compared(case: Case, work: Path, *, again: bool = False) -> Iterator[Compared]:
    """Run a case and yield its pools; `again` holds the forecast against the last run that is there."""
    from flowgraph.runtime.measure.measured_step import read_measured

    runs = work / "runs"
    ray_bytes, run = 0, max(runs.glob(f"{named(case)}-*"), default=runs) if again else runs
    if run == runs:
        run = runs / f"{named(case)}-{time.time_ns()}"
        ray_bytes = ran(command(case, work, run))
    plan = Plan.from_json((run / "plan.json").read_text("utf-8"))
    plan = forecast_again(prepare_from(plan, str(run)).problem, plan) if again else plan
    steps, constants = read_measured(run), MemoryConstants()
    ray = sum(len(pool.devices) for pool in plan.pools) > 1
    own = int(constants.process_bytes + constants.worker_bytes * ray)
    for forecast in plan.forecast:
        peaks = [peak for step in steps for each in step.forecast if each.pool == forecast.pool for peak in each.peaks]
        most = max(peak.memory_bytes for peak in peaks)
        worst = forecast.worst
        assert worst is not None, "a pool works"
        share = max(0, forecast.process_bytes - own)
        devices = sum(len(pool.devices) for pool in plan.pools)
        yield Compared(
            str(case),
            forecast.pool,
            worst.phase,
            worst.memory_bytes - share,
            most,
            share * devices,
            ray_bytes,
        )


def settings_of(case: Case) -> tuple[str, ...]:
    """Return the settings of a case's flow as a command line says them."""
    rule = "tests/gpu/even_samples.py:even"  # scores that differ within a group, so that there is a gradient
    sampling = f"policy.generate.n={case.samples}", f"policy.generate.max_tokens={case.tokens}"
    generates = (*sampling, f"score.by={HERE.parent / rule}")
    return (*(generates if case.tokens else ()), *case.settings)


def named(case: Case) -> str:
    """Return a name for the folders of a case's runs."""
    return f"case-{CASES.index(case)}-{case.flow}"


def model_of(case: Case, work: Path) -> str:
    """Return a case's model as a command line names it, made if it is not there."""
    return str(made(case.model, work / "models" / case.model)) if case.model in SIZES else case.model


def command(case: Case, work: Path, run: Path) -> list[str]:
    """Return the command line of a case, its model and rows made if they are not there."""
    model = model_of(case, work)
    told = ["--model", model + "".join(case.more)]
    if case.more:
        told += ["--model", f"ref={model}"]
    told += ["--data", str(rows(work / "rows.jsonl", case.tokens)), "--cluster", case.cluster]
    told += ["--placement", case.placement, "--steps", str(STEPS), "--batch", str(case.batch), "--eval-every", "0"]
    told += ["--checkpoint-every", "0", "--out", str(run), "--memory", "8GiB"]
    for each in settings_of(case):
        told += ["--set", each]
    return [sys.executable, "-m", "flowgraph", "run", case.flow, *told]


def ran(told: list[str]) -> int:
    """Run a command to its end; return the most bytes that Ray's own processes had resident at once."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(told, stdout=output, stderr=subprocess.STDOUT, env=environment)
        most, end = 0, time.monotonic() + LIMIT_S
        while process.poll() is None:
            most = max(most, ray_resident(process.pid))
            if time.monotonic() > end:
                process.kill()
            time.sleep(0.5)
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(told)}\n{output.read()[-4000:]}")
    return most


def ray_resident(pid: int) -> int:
    """Return the bytes of Ray's processes and those of host nodes: pages that several share are shared out."""
    import psutil

    total = 0
    try:
        driver = psutil.Process(pid)
        found = driver.children(recursive=True)
    except psutil.Error:
        return 0
    if not any("raylet" in each.name() for each in found):
        return 0
    for each in (driver, *found):
        with contextlib.suppress(psutil.Error):
            total += 0 if DEVICE.search(" ".join(each.cmdline())) else each.memory_full_info().pss
    return total


def made(name: str, folder: Path) -> Path:
    """Save a Llama of random weights and a tokenizer of 20 characters, unless it is there."""
    if folder.is_dir():
        return folder
    from flowgraph.models import tiny
    from flowgraph.models.libraries import seeded, transformers
    from flowgraph.models.saving import save

    _, tokenizer = tiny.build(SEED)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers().LlamaConfig(**SIZES[name], **ids, tie_word_embeddings=False)
    with seeded(SEED):
        model = transformers().LlamaForCausalLM(config)
    never_ends(model, ids["eos_token_id"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    return save(model, tokenizer, folder)


def never_ends(model: Any, end: int) -> None:
    """Make the end token's logit very small, as `benchmarks.material` does."""
    from benchmarks.material import _never_ends

    _never_ends(model, end)


def rows(file: Path, tokens: int) -> Path:
    """Write prompts of one length, with answers of digits for flows that learn from them."""
    file = file.with_name(f"rows-{tokens}.jsonl")
    if not file.is_file():
        text = ("0123456789" * 8)[:PROMPT_CHARACTERS]
        answer = "7" * ((tokens or ANSWER_TOKENS) - 1)  # and its end
        row = {"prompt": [{"role": "user", "content": text}], "ground_truth": answer, "response": answer}
        file.write_text("".join(json.dumps(row | {"id": str(i)}) + "\n" for i in range(PROMPTS)), "utf-8")
    return file


if __name__ == "__main__":
    sys.exit(main())
