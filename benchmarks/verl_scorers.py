"""Compare our graders with verl's scorers on a few thousand answers. docs/graders.md says what it found.

python benchmarks/verl_scorers.py [--only NAME] [--env .bench/verl-scorers] [--list]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
HEAD = ("grader", "verl's", "answers", "equal", "differ, and why")


@dataclass(frozen=True, eq=False)
class ScorePair:
    """One answer with our score and verl's; a text is what verl raised."""

    grader: Grader
    answer: ScoredText
    ours: float
    theirs: Any

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
    """Return verl's version, and each answer to each grader with both scores."""
    texts = [(grader, answer) for grader in graders for answer in grader.answers]
    theirs = _their_scores(python, texts)
    ours = list[float]()
    with Graders(WORKERS, LIMIT_S, start_limit_s=START_LIMIT_S, call_limit_s=CALL_LIMIT_S) as pool:
        for grader in graders:
            rows = [{"response": answer.response, "ground_truth": answer.truth} for answer in grader.answers]
            ours += pool.grade(resolve(grader.rule), rows, grader.ours).scores
    pairs = zip(texts, ours, theirs["found"], strict=True)
    score = [found["score"] if isinstance(found, dict) else found for found in theirs["found"]]
    return theirs["verl"], [ScorePair(*text, mine, found) for (text, mine, _), found in zip(pairs, score, strict=True)]


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


if __name__ == "__main__":
    sys.exit(main())
