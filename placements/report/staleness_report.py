"""What each staleness buys, as text."""

from __future__ import annotations

from collections import Counter

from placements.format import table
from placements.report.search_report import show_s
from placements.search.staleness import StalenessOption


def staleness_text(tried: tuple[StalenessOption, ...], chosen: int) -> str:
    """Print what each staleness buys, the chosen one marked."""
    rows = [
        [
            "→" if each.staleness == chosen else "",
            str(each.staleness),
            show_s(each.step_s),
            f"{each.step_s / tried[0].step_s - 1:+.0%}",
            _ratio(each),
            f"synced every {each.sync_every} updates" if each.sync_every > 1 else "synced after each update",
        ]
        for each in tried
    ]
    return "\n".join(["staleness, in updates; the least within 1% of the shortest step is taken", *table(rows)])


def _ratio(late: StalenessOption) -> str:
    """Say how many devices draw and how many train, those that do both apart."""
    counts = Counter[str]()
    for block, option in late.found.best.blocks:
        uses = {late.found.setting.roles[place].use for place in block}
        does = "do both" if {"sample", "train"} <= uses else "draw" if "sample" in uses else "train"
        counts[does] += sum(option.devices) if {"sample", "train"} & uses else 0
    if len(late.found.best.blocks) == 1 and counts["do both"]:
        return f"all on {counts['do both']}"
    return ", ".join(f"{count} {does}" for does in ("do both", "draw", "train") if (count := counts[does]))
