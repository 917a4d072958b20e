"""Hold the planner's serving forecasts against aiconfigurator's. docs/second_opinion.md says what came of it.

python benchmarks/serving_opinion.py [--short]    # against the answers in benchmarks/opinions/aiconfigurator.json
python benchmarks/serving_opinion.py --ask        # make that file: the package answers in an environment of its own
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.forecast.report import Case, Errors, Row, errors  # noqa: E402
from benchmarks.forecast.serving import Served  # noqa: E402
from benchmarks.serving_opinion_answers import FITS_NOT, Answer, Snapshot, ask  # noqa: E402
from benchmarks.serving_opinion_grid import Question, grid, published  # noqa: E402
from benchmarks.serving_opinion_ours import fits, forecast, overhead_share  # noqa: E402

MEASURED = HERE / "measured" / "serving_silicon_measured.csv"
OVERHEAD = "the engine's part of a step"
SHARES = ((0.25, "under a quarter"), (0.5, "a quarter to a half"), (1.0, "over a half"))


@dataclass(frozen=True)
class Pair:
    """Both opinions of one case, and how much of a step the planner lays to the engine."""

    question: Question
    theirs: Answer
    ours: Answer
    overhead: float


@dataclass(frozen=True)
class Judged:
    """A published row and both opinions of it."""

    question: Question
    measured: Served
    theirs: Answer
    ours: Answer


def latency_s(question: Question, answer: Answer) -> float:
    """Return the seconds of a request."""
    return answer.first_s + (question.response_tokens - 1) * answer.each_s


Figure = Callable[[Question, Answer], float]
FIGURES: Mapping[str, Figure] = {
    "request latency": latency_s,
    "time per output token": lambda _, answer: answer.each_s,
    "memory of a device": lambda _, answer: answer.memory_bytes,
}
"""What bounds are held on."""

PARTS: Mapping[str, Figure] = {
    "a step alone": lambda _, answer: answer.step_s,
    "reading the prompts alone": lambda _, answer: answer.prefill_s,
    "time to first token": lambda _, answer: answer.first_s,
    "weights of a device": lambda _, answer: answer.weights_bytes,
}
"""What they consist of."""

Group = Callable[[Any], str]
GROUPS: Mapping[str, Group] = {
    "model": lambda each: each.question.setup.model.rpartition("/")[2],
    "system": lambda each: each.question.setup.system,
    "engine": lambda each: each.question.setup.engine,
    "precision": lambda each: each.question.setup.precision,
    "devices": lambda each: f"TP {each.question.setup.tensor}",
    "batch": lambda each: str(each.question.batch),
    "lengths": lambda each: f"{each.question.prompt_tokens} + {each.question.response_tokens} tokens",
    OVERHEAD: lambda each: next(name for most, name in SHARES if each.overhead <= most),
}


def kind(each: Pair | Judged) -> str:
    """Name the model, system, engine and precision of a case."""
    return " ".join(GROUPS[name](each) for name in ("model", "system", "engine", "precision"))


def pairs(questions: Iterable[Question], kept: Snapshot) -> list[Pair]:
    """Return both opinions of every case that the package answered."""
    found = list[Pair]()
    for each in questions:
        told = kept.opinion(each)
        if told.answer is not None:
            ours, share = forecast(each, told.release), overhead_share(each, told.release)
            found.append(Pair(each, told.answer, ours, share))
    return found


def difference(found: Iterable[Pair], figure: Figure) -> Errors | None:
    """Sum up how far the planner's figure is from the package's, as a share of the latter."""
    return errors([Case("", figure(each.question, each.theirs), figure(each.question, each.ours)) for each in found])


def judged(rows: Sequence[Row], kept: Snapshot) -> list[Judged]:
    """Return the published rows that the package answers; the planner forecasts them for the release of the row."""
    found = list[Judged]()
    for question, told in published(rows):
        theirs = kept.opinion(question).answer
        if theirs is not None:
            found.append(Judged(question, told, theirs, forecast(question, told.version)))
    return found


def from_measured(found: Iterable[Judged], of: Callable[[Judged], Answer]) -> Errors | None:
    """Sum up how far the request latencies of one opinion are from the measured ones."""
    return errors([Case("", each.measured.measured_s, latency_s(each.question, of(each))) for each in found])


def verdicts(questions: Iterable[Question], kept: Snapshot) -> dict[tuple[bool, bool], int]:
    """Count cases by who finds place for them: the package, and the planner."""
    counts = {(theirs, ours): 0 for theirs in (True, False) for ours in (True, False)}
    for question in questions:
        told = kept.opinion(question)
        if told.answer is not None or told.why == FITS_NOT:
            counts[told.answer is not None, fits(question)] += 1
    return counts


def cell(found: Errors | None) -> str:
    """Write signed median, median and p90 of the sizes, and Spearman.

    >>> cell(errors([Case("", 1.0, 1.1), Case("", 2.0, 2.2), Case("", 4.0, 4.0)]))
    '+10.0 / 10.0 / 10.0 %, 1.000'
    """
    if found is None:
        return ""
    rank = "" if found.spearman is None else f", {found.spearman:.3f}"
    return f"{100 * found.bias:+.1f} / {100 * found.median:.1f} / {100 * found.p90:.1f} %{rank}"


def table(first: str, parts: Mapping[str, Sequence[Any]], columns: Mapping[str, Callable[[Any], Errors | None]]) -> str:
    """Write a table: a line for each part, a column for each way to sum it up."""
    lines = [[first, "cases", *columns], ["---"] * (len(columns) + 2)]
    lines += [[name, str(len(part)), *(cell(of(part)) for of in columns.values())] for name, part in parts.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(found: Iterable[Any], group: Group) -> dict[str, list[Any]]:
    """Put cases into groups, in the order in which they come."""
    groups = dict[str, list[Any]]()
    for each in found:
        groups.setdefault(group(each), []).append(each)
    return groups


def columns(figures: Mapping[str, Figure]) -> dict[str, Callable[[Any], Errors | None]]:
    """Return the columns of a table: how far the opinions of each figure are from each other."""

    def column(figure: Figure) -> Callable[[Any], Errors | None]:
        return lambda part: difference(part, figure)

    return {name: column(figure) for name, figure in figures.items()}


def difference_text(found: Sequence[Pair], *, each: bool) -> str:
    """Write how the opinions differ: of all cases, of groups of them, and of each model as it may be served."""
    parts: dict[str, Sequence[Pair]] = {"all": found}
    for name, group in GROUPS.items():
        ordered = sorted(found, key=lambda pair: pair.overhead) if name == OVERHEAD else found
        parts |= {f"{name}: {value}": part for value, part in grouped(ordered, group).items()}
    tables = [table("planner to aiconfigurator", parts, columns(FIGURES))]
    tables.append(table("what it consists of", {"all": found}, columns(PARTS)))
    if each:
        tables.append(table("planner to aiconfigurator", grouped(found, kind), columns(FIGURES)))
    return "\n\n".join(tables)


def judged_text(found: Sequence[Judged]) -> str:
    """Write how far each opinion is from what was measured."""
    opinions: dict[str, Callable[[Any], Errors | None]] = {
        "planner": lambda part: from_measured(part, lambda each: each.ours),
        "aiconfigurator": lambda part: from_measured(part, lambda each: each.theirs),
    }
    return table("request latency to published rows", {"all": found} | grouped(found, kind), opinions)


def read(path: Path = MEASURED) -> list[Row]:
    """Read the published rows."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def asked(rows: Sequence[Row]) -> list[Question]:
    """Return every question that the kept answers are to: the grid, and the published rows."""
    return list(dict.fromkeys([*grid(), *(question for question, _ in published(rows))]))


def main() -> int:
    """Print how the opinions differ."""
    options, rows = _options(), read()
    if options.ask:
        ask(options.env.resolve(), asked(rows), options.env.with_name("aiconfigurator-answers.json")).write()
    kept, questions = Snapshot.read(), list(grid())
    found, counts = pairs(questions, kept), verdicts(questions, kept)
    print(difference_text(found, each=not options.short))
    print(f"\n{len(questions)} cases asked, {len(found)} answered by {kept.told['package']}; ", end="")
    print(f"{counts[True, True]} fit and {counts[False, False]} do not by both, ", end="")
    print(f"{counts[True, False]} by aiconfigurator alone, {counts[False, True]} by the planner alone.\n")
    print(judged_text(judged(rows, kept)))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ask", action="store_true", help="let the package answer, and keep what it says")
    parser.add_argument("--short", action="store_true", help="leave out each model on each system, engine, precision")
    folder = HERE.parent / ".bench" / "aiconfigurator"
    parser.add_argument("--env", type=Path, default=folder, help="the package's environment; made if not there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
