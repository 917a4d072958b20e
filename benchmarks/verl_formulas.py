"""Compare our formulas with verl's own code on random ragged batches. docs/verl.md says what it found.

python benchmarks/verl_formulas.py [--seeds 5] [--only NAME] [--env .bench/verl]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.environment import ensure  # noqa: E402
from benchmarks.verl_advantages import ADVANTAGES, REWARDS  # noqa: E402
from benchmarks.verl_batches import KINDS, Array, Batch, cast, draw  # noqa: E402
from benchmarks.verl_case import Case  # noqa: E402
from benchmarks.verl_correction import CORRECTION  # noqa: E402
from benchmarks.verl_losses import LOSSES  # noqa: E402
from benchmarks.verl_reasons import ONLY_VERL, REASONS, Reason  # noqa: E402

CASES: Sequence[Case] = (*ADVANTAGES, *REWARDS, *LOSSES, *CORRECTION)
PER_TOKEN = ("advantages", "returns", "tokens", "rewards", "weights", "mask")
"""Results [B, T]: compared where the mask keeps a token. Gradients are compared everywhere."""

FEWEST = 5  # batches of a kind on which every explained difference shows
PARTS = ("values", "gradients", "metrics")
REFUSED = "refused"
"""Besides: verl raises where we do not."""

HEAD = ("formula", "batches", *PARTS, "verdict")


@dataclass(frozen=True)
class Outcome:
    """A case on the batches of one kind: the largest difference of each part that it has, and what verl refused."""

    case: Case
    kind: str
    apart: Mapping[str, float]
    refused: str = ""

    @property
    def differing(self) -> frozenset[str]:
        """Return the parts that differ by more than the case's tolerance."""
        parts = {part for part, each in self.apart.items() if each > self.case.tolerance}
        return frozenset(parts | ({REFUSED} if self.refused else set()))


@dataclass(frozen=True)
class Verdict:
    """Whether an outcome is what was expected, in words."""

    text: str
    expected: bool

    @classmethod
    def of(cls, outcome: Outcome, reasons: Sequence[Reason]) -> Verdict:
        """Judge an outcome: the parts that differ must be those that the reasons for it name, all of them."""
        named = [each for each in reasons if each.covers(outcome.case.key, outcome.kind)]
        wanted = frozenset(part for each in named for part in each.parts)
        found = outcome.differing
        if found == wanted:
            return cls(f"differ: {'; '.join(each.why for each in named)}" if found else "agree", True)
        told = (
            [f"NOT EXPLAINED: {', '.join(sorted(found - wanted))} {outcome.refused}".strip()] if found - wanted else []
        )
        told += [f"EXPLAINED, BUT AGREE: {', '.join(sorted(wanted - found))}"] if wanted - found else []
        return cls("; ".join(told), False)


def main() -> int:
    """Compare, print the table, and give 1 where something differs that is not explained, or no longer does."""
    options = _options()
    cases = [case for case in CASES if options.only in case.name]
    python = ensure(options.env.resolve(), "verl", "--no-deps")  # the pins are all that its formulas import
    with tempfile.TemporaryDirectory() as folder:
        theirs = answers(python, Path(folder), cases, options.seeds)
    outcomes = [compared(case, kind, options.seeds, theirs) for case in cases for kind in case.kinds]
    judged = [(each, Verdict.of(each, REASONS)) for each in outcomes]
    left = [] if options.only else uncovered(theirs, cases)
    agreeing = sum(not each.differing for each in outcomes)
    print(table(judged))
    print(f"\n{agreeing} of {len(outcomes)} comparisons agree, on {options.seeds} batches each.")
    print(f"verl {theirs['version']}, {theirs['torch']}; ours torch {torch.__version__}.")
    print("\n".join(f"NOT COMPARED: verl's {each}" for each in left))
    return int(bool(left) or not all(verdict.expected for _, verdict in judged))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare our formulas with verl's own code.")
    parser.add_argument("--seeds", type=int, default=FEWEST, help=f"how many batches of each kind, {FEWEST} or more")
    parser.add_argument("--only", default="", help="only formulas with this in their name")
    env = HERE.parent / ".bench" / "verl"
    parser.add_argument("--env", type=Path, default=env, help="verl's environment; made if not there")
    options = parser.parse_args()
    if options.seeds < FEWEST:
        sys.exit(f"--seeds {options.seeds}: on fewer than {FEWEST} batches some differences do not show")
    return options


def answers(python: Path, folder: Path, cases: Iterable[Case], seeds: int) -> Mapping[str, Array]:
    """Let verl do all cases, in its environment: what `verl_side.py` writes."""
    jobs = list[dict[str, Any]]()
    for case in cases:
        told: dict[str, Any] = {name: getattr(case, name) for name in ("key", "function", "by", "dtype")}
        told["settings"] = dict(case.settings)
        jobs += [told | {"batch": f"{kind}-{seed}"} for kind in case.kinds for seed in range(seeds)]
    for name in {job["batch"] for job in jobs}:
        kind, _, seed = name.rpartition("-")
        columns: dict[str, Any] = dict(draw(kind, int(seed)))
        np.savez(folder / f"{name}.npz", **columns)
    (folder / "jobs.json").write_text(json.dumps(jobs), "utf-8")
    subprocess.run([str(python), "-W", "ignore", str(HERE / "verl_side.py"), str(folder)], check=True, cwd=folder)
    with np.load(folder / "verl.npz") as found:
        return dict(found)


def ours(case: Case, batch: Batch) -> dict[str, Array]:
    """Do a case ourselves, its gradient too."""
    columns = {name: torch.from_numpy(np.array(each)) for name, each in cast(batch, case.dtype).items()}
    if case.by:
        columns[case.by].requires_grad_()
    given = dict(case.ours(columns))
    if case.by:
        given["gradient"] = torch.autograd.grad(given["loss"], columns[case.by])[0]
    return {name: np.asarray(torch.as_tensor(each).detach()) for name, each in given.items()}


def compared(case: Case, kind: str, seeds: int, theirs: Mapping[str, Array]) -> Outcome:
    """Compare a case on all batches of a kind."""
    found, refused = dict[str, float](), ""
    for seed in range(seeds):
        batch, at = draw(kind, seed), f"{case.key}|{kind}-{seed}|"
        mine = ours(case, batch)
        if f"{at}error" in theirs:
            refused = str(theirs[f"{at}error"])
            continue
        for name, value in mine.items():
            kept = batch["mask"] > 0 if name in PER_TOKEN else None
            found[part_of(name)] = max(found.get(part_of(name), 0.0), apart(value, theirs[at + name], kept))
    return Outcome(case, kind, found, refused)


def part_of(name: str) -> str:
    """Return which part of a comparison a result belongs to.

    >>> part_of("loss"), part_of("pg_clipfrac")
    ('values', 'metrics')
    """
    if name == "gradient":
        return "gradients"
    return "values" if name in (*PER_TOKEN, "loss", "scores", "factor") else "metrics"


def apart(ours: Array, theirs: Array, kept: Array | None = None) -> float:
    """Return the largest difference, relative where numbers are above 1; NaN is equal to NaN alone.

    >>> apart(np.array([1.0, 100.0]), np.array([1.0, 90.0]))
    0.1
    """
    if kept is not None:
        ours, theirs = (np.where(kept, each, 0.0) for each in (ours, theirs))
    same = (np.isnan(ours) & np.isnan(theirs)) | (ours == theirs)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs) / np.maximum(1.0, np.maximum(np.abs(ours), np.abs(theirs)))
    difference = np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))
    return float(difference.max(initial=0.0))


def uncovered(theirs: Mapping[str, Array], cases: Iterable[Case]) -> list[str]:
    """List what verl has by name that no case compares, and what is said to be only verl's but is compared."""
    done = set[str]()
    for case in cases:
        names = str(case.settings.get("name") or case.settings.get("options") or f"{case.function}_mode")
        done |= {f"{case.function.replace('bypass', 'loss')} {name}" for name in names.split(",")}
    there = {f"{kind} {name}" for kind in ("estimator", "loss", "rejection") for name in theirs[f"all|{kind}"].tolist()}
    return sorted((there - done - ONLY_VERL.keys()) | (ONLY_VERL.keys() & done) | (ONLY_VERL.keys() - there))


def table(judged: Sequence[tuple[Outcome, Verdict]]) -> str:
    """Return a table: a line for each formula and verdict, with the largest differences."""
    lines = dict[tuple[str, str], list[Outcome]]()
    for outcome, verdict in judged:
        lines.setdefault((outcome.case.name, verdict.text), []).append(outcome)
    rows = [HEAD, ("---",) * len(HEAD)]
    for (name, text), outcomes in lines.items():
        order = [kind for kind in KINDS if any(each.kind == kind for each in outcomes)]
        rows.append((name, ", ".join(order), *(_largest(outcomes, part) for part in PARTS), text))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _largest(outcomes: Iterable[Outcome], part: str) -> str:
    found = [each.apart[part] for each in outcomes if part in each.apart]
    return f"{max(found):.0e}" if found else ""


if __name__ == "__main__":
    sys.exit(main())
