"""Peak memory as it was measured, against the footprints of `placements`, and whether each run is called fitting.

The null model is what weights, gradients and the optimizer's states take. Nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.forecast.memory_rows import (
    LITGPT,
    LITGPT_CELLS,
    PAPER,
    PAPER_CELLS,
    PRIME,
    PRIME_CELLS,
    Measured,
    litgpt,
    megatron,
    prime,
    states,
    titan,
)
from benchmarks.forecast.report import Case, Row, Table, View
from placements.memory.footprint import fits

Reader = Callable[[Row], Measured | str]
GIB = 2**30


def _peaks(name: str, read: Reader) -> View:
    return View(name, "GiB", lambda rows: _cases(rows, read))


def _called(read: Reader) -> View:
    name = "is it called fitting: 1 is what happened, a row's error is 1 if we say the other"
    return View(name, "rows", lambda rows: _verdicts(rows, read))


def _cases(rows: Sequence[Row], read: Reader) -> Iterator[Case]:
    for found in map(read, rows):
        if isinstance(found, str):
            yield Case("", 0.0, None, group="left out", why=found)
        elif found.peak_bytes is not None:
            forecast, null = found.forecast_bytes / GIB, found.null_bytes / GIB
            yield Case(found.label, found.peak_bytes / GIB, forecast, null, found.group)


def _verdicts(rows: Sequence[Row], read: Reader) -> Iterator[Case]:
    """Give 1 for each row whose device would be called large enough and was, or too small and was."""
    for found in map(read, rows):
        if isinstance(found, str):
            yield Case("", 0.0, None, group="left out", why=found)
        elif found.usable_bytes is not None:
            ran = found.peak_bytes is not None
            ours, null = (
                fits(int(each), found.usable_bytes) == ran for each in (found.forecast_bytes, found.null_bytes)
            )
            yield Case(found.label, 1.0, float(ours), float(null), "ran" if ran else "out of memory")


TABLES = (
    Table("peak memory, prime-rl on FSDP2", PRIME, (_peaks("peak memory", prime), _called(prime)), PRIME_CELLS),
    Table("peak memory, LitGPT", LITGPT, (_peaks("peak memory", litgpt), _called(litgpt)), LITGPT_CELLS),
    Table(
        "peak memory of single papers",
        PAPER,
        (
            _peaks("peak memory, torchtitan", titan),
            _called(titan),
            _peaks("activations, Megatron-LM", megatron),
            _peaks("weights and optimizer, Megatron-LM", states),
        ),
        PAPER_CELLS,
    ),
)
