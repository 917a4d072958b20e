"""The step and the pools at each staleness, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placements.format import table
from placements.report.search_report import show_s
from placements.search.staleness import StalenessOption


def staleness_text(options: Sequence[StalenessOption], chosen: int) -> str:
    """Return the seconds of a step, the ratio of devices and the syncs at each staleness, the chosen one marked."""
    rows = [
        [
            "→" if option.staleness == chosen else "",
            str(option.staleness),
            show_s(option.step_s),
            f"{option.step_s / options[0].step_s - 1:+.0%}",
            _ratio(option),
            f"synced every {option.sync_every} updates" if option.sync_every > 1 else "synced after each update",
        ]
        for option in options
    ]
    return "\n".join(["staleness, in updates; the least within 1% of the shortest step is taken", *table(rows)])


def _ratio(option: StalenessOption) -> str:
    """Return how many devices sample and how many train; those that do both are counted separately."""
    counts = Counter[str]()
    for block, pool in option.found.best.blocks:
        uses = {option.found.setting.roles[place].use for place in block} & {"sample", "train"}
        if uses:
            counts["do both" if len(uses) == 2 else uses.pop()] += sum(pool.devices)
    if len(option.found.best.blocks) == 1 and counts["do both"]:
        return f"all on {counts['do both']}"
    return ", ".join(f"{count} {use}" for use in ("do both", "sample", "train") if (count := counts[use]))
