"""Time description and compilation: a flow of PPO's shape, and generated graphs of growing size. See README.md here.

python benchmarks/compiling.py [--rounds 3] [--nodes 10000] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own folder is on the path

from flowgraph import Flow, Kind, Linear, Loss, Mask, Trainable, flow, node
from flowgraph.analysis.flat_graph import full_hash, to_json
from flowgraph.passes import named, simplified
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from nodes import LogProbs, update
from tests.flows.ppo_shaped import ppo_shaped


class Level(Linear):
    """A number."""

    kind = Kind.SCALAR


class Net(Trainable):
    """Weights."""


@node
def join(a: Level, *, b: Level, weight: float = 1.0) -> Level:
    """Join two numbers."""
    raise NotImplementedError


@node
def observe(model: Net, level: Level) -> LogProbs:
    """Read weights."""
    raise NotImplementedError


@node
def select(level: Level) -> Mask:
    """Make a mask."""
    raise NotImplementedError


@node
def descend(new: LogProbs, mask: Mask) -> Loss:
    """Make a loss."""
    raise NotImplementedError


@flow
def chain(start: Level, *, nodes: int) -> Level:
    """Describe one long chain."""
    for i in range(nodes):
        start = join(start, b=start, weight=float(i))
    return start


@flow
def tree(start: Level, *, nodes: int) -> Level:
    """Describe a tree of joins, half of its nodes at the bottom."""
    ends = [join(start, b=start, weight=float(i)) for i in range(nodes // 2)]
    while len(ends) > 1:
        ends = [join(a, b=b) for a, b in zip(ends[::2], ends[1::2], strict=False)] + ends[len(ends) // 2 * 2 :]
    return ends[0]


@flow
def updates(start: Level, net: Net, *, nodes: int) -> Net:
    """Describe a chain of updates, four nodes each: every one has a loss and makes the next version."""
    for i in range(nodes // 4):
        net = update(net, _loss(start, i))
    return net


def _loss(start: Level, i: int) -> Callable[[Net], Loss]:
    def loss(pi: Net) -> Loss:
        return descend(observe(pi, start), select(join(start, b=start, weight=float(i))))

    return loss


CASES: dict[str, Flow[..., Any]] = {"ppo": ppo_shaped, "chain": chain, "tree": tree, "updates": updates}
AGAIN = 5  # times that a case is repeated in its process, to tell what is the same but for caches that are warm


def stages(of: Flow[..., Any], settings: Mapping[str, object]) -> dict[str, float]:
    """Give the milliseconds of each stage of one description: what `show` and `run` do before anything is loaded."""
    took, at = dict[str, float](), time.perf_counter()

    def done(stage: str) -> None:
        nonlocal at
        took[stage] = 1000 * (time.perf_counter() - at)
        at = time.perf_counter()

    described = of.graph(settings)
    done("describe")
    graph = simplified(named(described))
    done("compile")
    graph_text(graph)
    done("print")
    text = to_json(graph)
    full_hash(graph)
    done("store")
    from_json(text)
    done("read")
    return took


def here(name: str, nodes: int) -> dict[str, float]:
    """Time a case in this process: the first time, and for the small flow the median of some times more as `again`."""
    of, settings = CASES[name], {"nodes": nodes} if nodes else {}
    took = stages(of, settings)
    if not nodes:
        runs = [stages(of, settings) for _ in range(AGAIN)]
        took["again"] = median(run["describe"] + run["compile"] for run in runs)
    return took


def measure(rounds: int, nodes: int) -> dict[str, dict[str, float]]:
    """Give median milliseconds by case and stage, each in a process of its own; rounds are interleaved."""
    sizes = [nodes // 8, nodes // 4, nodes // 2, nodes]
    cases = [("ppo", 0), *((name, size) for name in CASES if name != "ppo" for size in sizes)]
    runs = [{case: _apart(*case) for case in cases} for _ in range(rounds)]
    return {
        f"{case[0]} {case[1] or ''}".strip(): {
            stage: median(run[case][stage] for run in runs) for stage in runs[0][case]
        }
        for case in cases
    }


def _apart(name: str, nodes: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", name, "--nodes", str(nodes)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(told.stdout)
    return found


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Print the medians, and how compilation grows from one size to the next (2.0 is linear)."""
    heads = ["describe", "compile", "print", "store", "read"]
    lines = [f"{'ms':<16}" + "".join(f"{head:>10}" for head in heads) + f"{'describe + compile':>20}{'growth':>8}"]
    before: tuple[str, float] = ("", 0.0)
    for name, took in found.items():
        total, shape = took["describe"] + took["compile"], name.partition(" ")[0]
        growth = f"{total / before[1]:8.2f}" if before[0] == shape else " " * 8
        again = f"  again: {took['again']:.1f}" if "again" in took else ""
        lines.append(
            f"{name:<16}" + "".join(f"{took[head]:>10.1f}" for head in heads) + f"{total:>20.1f}{growth}{again}"
        )
        before = (shape, total)
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, help="time this case in this process, once")
    told = parser.parse_args()
    if told.case is not None:
        print(json.dumps(here(told.case, told.nodes)))
        return
    found = measure(told.rounds, told.nodes)
    print(json.dumps(found, indent=1) if told.json else table(found))


if __name__ == "__main__":
    main()
