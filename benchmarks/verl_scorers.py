"""Compare our graders with verl's scorers on a few thousand answers. docs/graders.md says what it found.

python benchmarks/verl_scorers.py [--only NAME] [--env .bench/verl-scorers] [--list]
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.environment import ensure  # noqa: E402
from benchmarks.verl_scorers_answers import GRADERS, Grader, ScoredText  # noqa: E402
from benchmarks.verl_scorers_reasons import ScoreReason, reason_for  # noqa: E402
from nodes.scoring.graders import Graders  # noqa: E402
from nodes.scoring.rules import resolve  # noqa: E402

WORKERS, LIMIT_S, START_LIMIT_S, CALL_LIMIT_S = 2, 60.0, 600.0, 7_200.0
CLOCKED, TRIES = frozenset({"math_verify"}), 3
"""Rules whose library has a limit by the clock, which ends comparisons on a busy machine; Math-Verify's is 5 s."""

HEAD = ("grader", "verl's", "answers", "equal", "differ, and why")


@dataclass(frozen=True, eq=False)
class ScorePair:
    """One answer with our score and verl's, which is a text if verl raised; `again` if these are second scores."""

    grader: Grader
    answer: ScoredText
    ours: float
    theirs: Any
    again: bool = False

    @property
    def equal(self) -> bool:
        """Return whether both scores are the same number."""
        return not isinstance(self.theirs, str) and abs(self.ours - float(self.theirs)) < 1e-9


def main() -> int:
    """Compare, print the table, and return 1 if a difference has no reason, or a reason has no difference."""
    options = _options()
    graders = [grader for grader in GRADERS if options.only in grader.rule]
    python = ensure(options.env.resolve(), "verl-scorers", "--no-deps")
    version, pairs = compared(python, graders)
    reasons = {pair: reason_for(pair.grader, pair.answer, pair.ours, pair.theirs) for pair in pairs if not pair.equal}
    print(table(graders, pairs, reasons))
    equal = sum(pair.equal for pair in pairs)
    print(f"\n{equal} of {len(pairs)} scores are equal; verl {version}.")
    if again := [pair for pair in pairs if pair.again]:
        print(rescored(again))
    left = [pair for pair, reason in reasons.items() if reason is None]
    for pair in reasons if options.list else left:
        text = f"{pair.answer.response[-60:]!r} for {pair.answer.truth!r}"
        mark = "" if reasons[pair] else "NOT EXPLAINED: "
        print(f"{mark}{pair.grader.rule}, {pair.answer.shape}: {text}: ours {pair.ours:g}, verl's {pair.theirs}")
    return int(bool(left))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare our graders with verl's scorers.")
    parser.add_argument("--only", default="", help="only graders with this in their name")
    parser.add_argument("--list", action="store_true", help="list every difference")
    env = HERE.parent / ".bench" / "verl-scorers"
    parser.add_argument("--env", type=Path, default=env, help="the environment of verl's scorers; made if not there")
    return parser.parse_args()


def compared(python: Path, graders: Sequence[Grader]) -> tuple[str, list[ScorePair]]:
    """Return verl's version, and each answer to each grader with both scores.

    Answers to `CLOCKED` rules that differ are scored again, up to `TRIES` times, one at a time on both sides.
    """
    version, pairs = scored(python, [(grader, answer) for grader in graders for answer in grader.answers], WORKERS)
    for _ in range(TRIES):
        again = [index for index, pair in enumerate(pairs) if pair.grader.rule in CLOCKED and not pair.equal]
        if not again:
            break
        _, alone = scored(python, [(pairs[index].grader, pairs[index].answer) for index in again], 1)
        for index, pair in zip(again, alone, strict=True):
            pairs[index] = replace(pair, again=True)
    return version, pairs


def scored(python: Path, texts: Sequence[tuple[Grader, ScoredText]], workers: int) -> tuple[str, list[ScorePair]]:
    """Return verl's version, and each answer with its grader and both scores; `workers` processes score ours."""
    found, ours = _their_scores(python, texts), list[float]()
    with Graders(workers, LIMIT_S, start_limit_s=START_LIMIT_S, call_limit_s=CALL_LIMIT_S) as pool:
        for grader, of_grader in itertools.groupby(texts, key=itemgetter(0)):
            rows = [{"response": answer.response, "ground_truth": answer.truth} for _, answer in of_grader]
            ours += pool.grade(resolve(grader.rule), rows, grader.ours).scores
    theirs = [result["score"] if isinstance(result, dict) else result for result in found["found"]]
    return found["verl"], [ScorePair(*text, *scores) for text, *scores in zip(texts, ours, theirs, strict=True)]


def _their_scores(python: Path, texts: Sequence[tuple[Grader, ScoredText]]) -> Mapping[str, Any]:
    """Return what `verl_scorers_side.py` writes: verl's version, and its result for each answer."""
    jobs = [
        {"theirs": grader.theirs, "settings": dict(grader.settings), "response": answer.response, "truth": answer.truth}
        for grader, answer in texts
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "answers.json").write_text(json.dumps(jobs), "utf-8")
        side = [str(python), "-E", "-W", "ignore", str(HERE / "verl_scorers_side.py"), folder]
        subprocess.run(side, check=True, cwd=folder, stderr=subprocess.DEVNULL)
        found: Mapping[str, Any] = json.loads(Path(folder, "verl.json").read_text("utf-8"))
    return found


def table(
    graders: Sequence[Grader], pairs: Sequence[ScorePair], reasons: Mapping[ScorePair, ScoreReason | None]
) -> str:
    """Return a table: a line for each grader, with the number of equal scores and the reasons of the others."""
    rows = [HEAD, ("---",) * len(HEAD)]
    for grader in graders:
        mine = [pair for pair in pairs if pair.grader is grader]
        why = Counter(getattr(reasons[pair], "why", "NOT EXPLAINED") for pair in mine if not pair.equal)
        equal = f"{sum(pair.equal for pair in mine)}"
        settings = "".join(f", {name}={value}" for name, value in grader.settings.items())
        reasons_text = "; ".join(f"{count}: {text}" for text, count in why.most_common())
        rows.append((f"`{grader.rule}`", f"{grader.theirs}{settings}", f"{len(mine)}", equal, reasons_text))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def rescored(again: Sequence[ScorePair]) -> str:
    """Return a sentence on the answers that differed at first and were scored again, alone."""
    rules = ", ".join(f"`{rule}`" for rule in dict.fromkeys(pair.grader.rule for pair in again))
    equal = sum(pair.equal for pair in again)
    return (
        f"{len(again)} answers to {rules}, whose library has a limit by the clock, differed while the machine was "
        f"busy and were scored again, alone: {equal} of them are equal, and the table has their second scores."
    )


if __name__ == "__main__":
    sys.exit(main())
