"""Time a step of several ranks, which takes as long as the busiest: rows dealt by work against dealt by number.

python benchmarks/balancing.py [--ranks 4] [--prompts 32] [--rounds 3] [--json FILE]

Each rank's rows are run here one rank after another, forward and backward, on one thread; a step counts as long as the
rank that takes most CPU seconds. What ranks send each other is not in it, nor that ranks with shards wait for each
other in every micro-batch. Rows, model and passes are those of `packing.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.figures import ratios, table  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.packing import Setting, arrived, drawn, model_of, packed_pass, padded_pass, same  # noqa: E402

PADDED, PACKED, BALANCED = "padded, by number", "packed, by number", "packed, by work"
Seconds = dict[str, list[list[float]]]
"""CPU seconds by way, round and rank."""


@dataclass(frozen=True)
class Told:
    """What each rank took, and how many response tokens a step has, of all ranks."""

    seconds: Seconds
    response_tokens: int

    def steps(self, way: str) -> list[float]:
        """Return the seconds of a step by round: those of its busiest rank."""
        return [max(ranks) for ranks in self.seconds[way]]

    def waits(self, way: str) -> float:
        """Return the part of a step that ranks wait for the busiest, the mean over ranks: the median over rounds."""
        return median(1 - sum(ranks) / len(ranks) / max(ranks) for ranks in self.seconds[way])

    def faster(self, way: str) -> float:
        """Return how many times the tokens per second of padded rows dealt by number: the median over rounds."""
        return median(ratios(self.steps(PADDED), self.steps(way)))


def main() -> int:
    """Measure, print, and write the figures where `--json` says."""
    import torch

    torch.set_num_threads(1)
    options = _options()
    given = vars(options)
    setting = Setting(**{name: given[name] for name in Setting.__dataclass_fields__})
    before = machine()
    told = measure(setting, options.ranks)
    print(report(setting, told))
    if options.json:
        faster = {way: told.faster(way) for way in told.seconds}
        figures = {"setting": asdict(setting), "ranks": options.ranks, "machine": before, "faster": faster}
        options.json.write_text(json.dumps(figures | {"told": asdict(told)}, indent=1), "utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time a step of several ranks, rows dealt by work or by number.")
    defaults = Setting(32, 8, 48, 64, 1.0, 640, 2048, 192, 2, 3, alike=0.5)
    for name, default in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def measure(setting: Setting, ranks: int) -> Told:
    """Run each rank's rows each way, in turns; the first round is not counted."""
    from flowgraph.engines.forward_pass.forward import split_rows

    model, rows = model_of(setting), drawn(setting)
    shares = {"number": by_number(setting, ranks), "work": by_work(setting, rows, ranks)}

    def packed(mine: Any) -> float:
        return sum(packed_pass(model, part) for part in split_rows(mine, setting.budget))

    def padded(mine: Any) -> float:
        return sum(padded_pass(model, batch) for batch in arrived(mine, len(split_rows(mine, setting.budget))))

    ways: dict[str, list[Callable[[], float]]] = {
        PADDED: [partial(padded, taken(rows, each)) for each in shares["number"]],
        PACKED: [partial(packed, taken(rows, each)) for each in shares["number"]],
        BALANCED: [partial(packed, taken(rows, each)) for each in shares["work"]],
    }
    seconds: Seconds = {way: [] for way in ways}
    for turn in range(setting.rounds + 1):
        sums = list[float]()
        for way in sorted(ways, reverse=bool(turn % 2)):
            told = [timed(one, model) for one in ways[way]]
            seconds[way].append([each for each, _ in told])
            sums.append(sum(value for _, value in told))
        same(sums)
    return Told({way: each[1:] for way, each in seconds.items()}, int(rows.lengths.sum()))


def timed(one: Callable[[], float], model: Any) -> tuple[float, float]:
    """Return the CPU seconds of one rank's step, and its sum."""
    model.zero_grad()
    start = time.process_time()
    value = one()
    return time.process_time() - start, value


def by_number(setting: Setting, ranks: int) -> list[list[int]]:
    """Deal whole groups in order, as many to each rank as goes: the rows of each.

    >>> by_number(Setting(3, 2, 1, 1, 1.0, 1, 1, 1, 1, 1), 2)
    [[0, 1, 2, 3], [4, 5]]
    """
    import numpy as np

    rows = np.arange(setting.prompts * setting.samples).reshape(setting.prompts, setting.samples)
    return [part.ravel().tolist() for part in np.array_split(rows, ranks)]


def by_work(setting: Setting, rows: Any, ranks: int) -> list[list[int]]:
    """Deal whole groups by the work that their rows are, as the runtime does: the rows of each rank."""
    import numpy as np
    import pyarrow as pa

    from flowgraph.runtime import row_identity

    group = np.arange(setting.prompts).repeat(setting.samples)
    columns = {"context": rows.context, "lengths": pa.array(rows.lengths.numpy()), "#group": pa.array(group)}
    shares = row_identity.balanced_shares(pa.table(columns), row_identity.Guide("rollout", "context", "lengths"), ranks)
    return [np.flatnonzero(np.isin(group, shares.of(group, rank, ranks))).tolist() for rank in range(ranks)]


def taken(rows: Any, mine: Sequence[int]) -> Any:
    """Return one rank's rows."""
    import pyarrow as pa

    return replace(
        rows, context=rows.context.take(pa.array(mine)), tokens=rows.tokens[mine], lengths=rows.lengths[mine]
    )


def report(setting: Setting, told: Told) -> str:
    """Return what was measured, in a table."""
    lines = [
        [
            way,
            f"{median(told.steps(way)):.2f}",
            f"{told.response_tokens / median(told.steps(way)):.0f}",
            f"{100 * told.waits(way):.0f} %",
            f"{told.faster(way):.2f}",
        ]
        for way in told.seconds
    ]
    ranks = len(next(iter(told.seconds.values()))[0])
    rows = f"{setting.prompts} groups of {setting.samples} rows, {told.response_tokens} response tokens"
    head = ["", "s of the busiest rank", "response tokens a second", "waited", "times padded"]
    return f"{rows}, {ranks} ranks, median of {setting.rounds} rounds\n{table(head, lines)}"


if __name__ == "__main__":
    raise SystemExit(main())
