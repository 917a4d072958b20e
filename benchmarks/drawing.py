"""How long drawing takes: whole commands, beside `flowgraph --help`, and pictures, beside Graphviz's layout alone.

`python benchmarks/drawing.py` prints medians (least … most) of interleaved rounds, each second one backwards, and the
ratio to the baseline of the same round. Commands are processes, in wall seconds; pictures are made in one process that
has drawn once, in seconds of its processor. One thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.figures import Spread, ratios, table  # noqa: E402 - after the path above
from benchmarks.machine import ONE_THREAD, machine  # noqa: E402
from flowgraph.app import DrawTarget, find_target, make_request  # noqa: E402
from flowgraph.app.drawing.page import target_page  # noqa: E402
from flowgraph.app.drawing.pictures import PictureDetail, picture_named  # noqa: E402
from flowgraph.diagrams.model.picture import Arrow, Box, Picture  # noqa: E402
from flowgraph.diagrams.write.formats import text_in  # noqa: E402
from flowgraph.diagrams.write.svg.layout import graphviz_layout  # noqa: E402

LARGE = ("--cluster", "128x8xh100", "--model", "policy=Qwen/Qwen2.5-7B", "--response-tokens", "mean=1k,max=4k")
HELP, GRAPHVIZ = "--help", "Graphviz alone, PPO"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    HELP: ("--help",),
    "draw grpo": ("draw", "grpo"),
    "draw grpo --to mmd": ("draw", "grpo", "--to", "mmd"),
    "draw grpo -o plan.svg": ("draw", "grpo", "-o", "plan.svg"),
    "draw grpo -o plan.png": ("draw", "grpo", "-o", "plan.png"),
    "draw grpo -o plan.html": ("draw", "grpo", "-o", "plan.html"),
    "diff grpo ppo -o both.svg": ("diff", "grpo", "ppo", "-o", "both.svg"),
    "plan of 1,024 devices, searched": ("draw", "ppo", *LARGE, "-o", "plan.svg"),
    "page of it, with its search": ("draw", "ppo", *LARGE, "-o", "plan.html"),
}


def run(arguments: tuple[str, ...], folder: Path) -> None:
    """Run a command in a folder. Raises CalledProcessError where it fails."""
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flowgraph", *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)


def large(boxes: int = 500) -> Picture:
    """Return a picture of so many boxes, each of which reads the two before and one farther away."""
    made = tuple(Box(f"n{i}", (f"policy.step#{i}",), "host") for i in range(boxes))
    reads = [(i - back, i) for i in range(boxes) for back in (1, 2, 17) if i >= back]
    return Picture("large", made, (), tuple(Arrow(f"n{a}", f"n{b}", "Rollout") for a, b in reads))


def pictures() -> dict[str, Callable[[], object]]:
    """Return what is drawn in one process, by name; what is searched is searched before."""
    flow = picture_named("flow", find_target(make_request(flow="ppo"), print), PictureDetail())
    assert isinstance(flow, Picture)
    request = make_request(
        flow="ppo", model="policy=Qwen/Qwen2.5-7B", cluster="128x8xh100", response_tokens="mean=1k,max=4k"
    )
    searched: DrawTarget = find_target(request, print)
    drawn, wide = picture_named("plan", searched, PictureDetail()), large()
    picture_named("search", searched, PictureDetail())
    made: dict[str, Callable[[], object]] = {GRAPHVIZ: lambda: graphviz_layout(flow)}
    for name in ("svg", "mmd", "dot", "json", "text"):
        made[f"PPO as {name}"] = lambda name=name: text_in(flow, name)  # type: ignore[misc]
    made["plan of 1,024 devices as svg"] = lambda: text_in(drawn, "svg")
    made["page of it"] = lambda: target_page(searched, PictureDetail())
    made["500 boxes, Graphviz alone"] = lambda: graphviz_layout(wide)
    made["500 boxes as svg"] = lambda: text_in(wide, "svg")
    made["500 boxes as text"] = lambda: text_in(wide, "text")
    return made


def measured(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Take each way once a round, each second round backwards; give seconds by way, after one uncounted round."""
    told: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            began = clock()
            ways[name]()
            if number:
                told[name].append(clock() - began)
    return told


def rows(told: Mapping[str, list[float]], baseline: str) -> str:
    """Write seconds and ratios as a table."""
    lines = [
        [name, Spread.of(each).text(3), Spread.of(ratios(each, told[baseline])).text(2)] for name, each in told.items()
    ]
    return table(["", "seconds", f"to {baseline}"], lines)


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(machine(("flowgraph", "pygraphviz", "jinja2")))
    with tempfile.TemporaryDirectory() as folder:
        commands = {name: lambda given=given: run(given, Path(folder)) for name, given in COMMANDS.items()}
        print(rows(measured(commands, rounds, time.perf_counter), HELP))
    print(rows(measured(pictures(), rounds, time.process_time), GRAPHVIZ))
    return 0


if __name__ == "__main__":
    sys.exit(main())
