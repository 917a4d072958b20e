"""verl's smallest published machines for a model, by `plan` and `fit`: `python benchmarks/recipes.py`.

verl says which devices a model needs at least (docs/perf/device_tuning.rst, docs/perf/dpsk.md), of one recipe the
memory, and of none the seconds or the lengths; 512 tokens of a prompt and 1,536 of a response are taken, and GRPO with
5 samples of each of 256 prompts. Machines have 1.6 TB of host memory, as verl asks for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = """\
[[node]]
name = "machine"
count = {count}
host_memory = "1.6TB"
cores = 128
network = "50 GB/s"

[[node.device]]
model = "{device}"
count = {each}
"""
MEGATRON = ("--engine", "train=megatron", "--engine", "infer=megatron")


@dataclass(frozen=True)
class Smallest:
    """A model on so many machines of so many devices, with what trains it, and the bytes of a device as published."""

    model: str
    machines: int
    each: int
    device: str
    engines: tuple[str, ...] = ()
    published_bytes: float | None = None


RECIPES = (
    Smallest("Qwen/Qwen2.5-7B", 1, 2, "h800"),
    Smallest("Qwen/Qwen2.5-14B", 1, 4, "h800"),
    Smallest("Qwen/Qwen2.5-32B", 1, 8, "h20", MEGATRON),
    Smallest("Qwen/Qwen2.5-72B", 4, 8, "h800"),
    Smallest("Qwen/Qwen2.5-72B", 4, 8, "h20"),
    Smallest("Qwen/Qwen3-235B-A22B", 4, 8, "h20", MEGATRON),
    Smallest("deepseek-ai/DeepSeek-V3", 12, 8, "h20", MEGATRON, 66e9),
)


def answered(recipe: Smallest, verb: str, folder: Path) -> dict[str, Any] | None:
    """Return the plan that `plan` or `fit` prints as JSON; None where it is refused."""
    cluster = folder / "cluster.toml"
    cluster.write_text(CLUSTER.format(count=recipe.machines, each=recipe.each, device=recipe.device), "utf-8")
    command = [sys.executable, "-m", "flowgraph", verb, "grpo", "--model", recipe.model, "--cluster", str(cluster)]
    command += ["--batch", "256", "--set", "policy.generate.n=5", "--prompt-tokens", "512", "--response-tokens", "1536"]
    command += ["--set", "policy.update.minibatch=64", *recipe.engines, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if said.returncode:
        return None
    plan: dict[str, Any] = json.loads(said.stdout)["plan"]
    return plan


def peak_bytes(plan: dict[str, Any]) -> float:
    """Return the most bytes that a device of a plan holds."""
    return max(float(peak["memory_bytes"]) for pool in plan["forecast"] for peak in pool["peaks"])


def devices(plan: dict[str, Any]) -> int:
    """Return the devices of all pools of a plan."""
    return sum(len(pool["devices"]) for pool in plan["pools"])


def lines(folder: Path) -> Iterator[str]:
    """Return the table, a line for each recipe."""
    yield "model                    machines    published  ours, by plan            fewest devices, by fit"
    for recipe in RECIPES:
        best, least = (answered(recipe, verb, folder) for verb in ("plan", "fit"))
        published = f"{recipe.published_bytes / 2**30:.0f} GiB" if recipe.published_bytes else "-"
        ours = f"{peak_bytes(best) / 2**30:.0f} GiB, {best['step']['period_s']:,.0f} s" if best else "refused"
        fewest = f"{devices(least)}" if least else "refused"
        where = f"{recipe.machines}x{recipe.each} {recipe.device}"
        yield f"{recipe.model.split('/')[1]:24} {where:11} {published:>9}  {ours:24} {fewest}"


def main() -> int:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        for line in lines(Path(folder)):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
