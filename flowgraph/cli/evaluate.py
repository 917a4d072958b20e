"""`eval`: draw responses to held-out prompts, score them, and say what that tells; or score those of a file again."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.cli.generations import BatchFiles, GenerationsFile, check_out, partial_path, parts_for, rule_rows
from flowgraph.cli.interrupts import INTERRUPTED
from flowgraph.cli.listings import print_table
from flowgraph.cli.sampling import LOST, Progress, SamplingRequest, asking_of, draw, keep, prepared
from flowgraph.cli.weights import named_model, subject_of
from flowgraph.cli.written_files import write_text
from flowgraph.errors import RuleError, UsageError
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.passes import named
from nodes.estimates import INTERVAL, Marks, reported, shown_ks
from nodes.evaluation import respond_and_score
from nodes.graders import Graders
from nodes.rules import refuse_missing, resolve, rule_for
from nodes.truths import refuse_missing_truths

if TYPE_CHECKING:
    import pyarrow as pa

    from flowgraph.cli.sampling import SamplingRun
    from nodes.estimates import Estimate, ScoreReport

ENDINGS = (".parquet", ".json")


@dataclass(frozen=True)
class Output:
    """Where what comes of a command goes."""

    out: Path | None = None
    overwrite: bool = False
    as_json: bool = False


class ScoreTally:
    """What a report is made of: some numbers a response, batch by batch."""

    def __init__(self) -> None:
        self._columns = defaultdict[str, list[Any]](list)
        self.lost = Counter[str]()

    def add(self, table: pa.Table, scores: Any = None) -> None:
        """Add rows of a file of generations; `scores` take the place of the file's."""
        import pyarrow.compute as pc

        found = {name: table.column(name) for name in ("finished", "data_source") if name in table.column_names}
        found |= {"prompt": table.column("prompt_index")}
        if "response_ids" in table.column_names:
            found["tokens"] = pc.call_function("list_value_length", [table.column("response_ids")])
        arrays = {name: column.to_numpy() for name, column in found.items()}
        arrays["score"] = table.column("score").to_numpy() if scores is None else scores
        for name, array in arrays.items():
            self._columns[name].append(array)

    def marks(self) -> Marks:
        """Give all rows."""
        import numpy as np

        whole = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        source = whole.get("data_source")
        return Marks(
            prompt=whole["prompt"],
            score=whole["score"].astype(np.float32),
            tokens=whole["tokens"].astype(np.int64) if "tokens" in whole else None,
            finished=whole["finished"].astype(np.bool_) if "finished" in whole else None,
            source=None if source is None else source.astype(str),
        )

    def mean(self) -> float:
        """Give the mean score so far."""
        parts = self._columns["score"]
        return float(sum(part.sum(dtype="float64") for part in parts)) / sum(map(len, parts))


def eval_asked(
    model: str | None,
    generations: Path | None,
    param: str | None,
    wanted: SamplingRequest,
    by: str | None,
    output: Output,
) -> int:
    """Evaluate a model, or responses that are there already, whichever is named; give the exit code."""
    if generations is None:
        return eval_model(named_model(model, "eval"), param, wanted, by, output)
    given = {"MODEL": model, "--param": param, "--data": wanted.data, "--held-out": wanted.held_out}
    others = [name for name, value in given.items() if value is not None]
    if others:
        what = f"responses are there already, so {others[0]} says nothing"
        raise UsageError(what, where=f"--generations {generations}")
    return eval_saved(generations, by, wanted.sets, output)


def eval_model(model: str, param: str | None, wanted: SamplingRequest, by: str | None, output: Output) -> int:
    """Draw responses of a model and score them; give the exit code."""
    if output.out is not None:
        check_out(output.out, ENDINGS, output.overwrite)
    subject = subject_of(model, param, wanted.cache)
    asking = asking_of(wanted, subject)
    rule = by or subject.by or "data"
    refuse_unknown_rule(rule, asking.table)
    refuse_missing_truths(rule, asking.table, asking.name)
    drawing = prepared(respond_and_score, wanted, subject, asking, {"by": rule})
    whole = output.out is not None and output.out.suffix == ".parquet"
    with parts_for(output.out if whole else None) as parts:
        return _eval_into(parts, drawing, {"by": rule}, output, whole)


def _eval_into(parts: BatchFiles, drawing: SamplingRun, more: Mapping[str, Any], output: Output, whole: bool) -> int:
    import pyarrow.parquet as pq

    tally, progress = ScoreTally(), Progress("eval", drawing.asking.table.num_rows)

    def done(path: Path, lost: Mapping[str, int]) -> None:
        table = pq.read_table(path, page_checksum_verification=True)
        tally.add(table)
        tally.lost.update(lost)
        prompts = table.num_rows // drawing.facts["n"]
        progress.add(prompts, f"  score {tally.mean():.4f}")
        if not whole:
            path.unlink()

    facts = {**drawing.facts, **more}
    try:
        facts = draw(drawing, parts, done, more)
    except KeyboardInterrupt:
        if keep(parts, output.out if whole else None, facts, progress):
            left = None if output.out is None or whole else partial_path(output.out)
            tell(facts | {"done": progress.done}, tally, replace(output, out=left))
        return INTERRUPTED
    except Exception:
        keep(parts, output.out if whole else None, facts, progress)
        raise
    if whole and output.out is not None:
        parts.join(output.out, facts)
    tell(facts, tally, output)
    return 0


def eval_saved(path: Path, by: str | None, sets: Sequence[str], output: Output) -> int:
    """Score the responses of a file again, without any model; give the exit code."""
    if output.out is not None:
        check_out(output.out, ENDINGS[1:], output.overwrite)
    saved = GenerationsFile.open(path)
    rule = by or str(saved.facts.get("by", "data"))
    settings = _score_settings(rule, sets)
    tally, progress = ScoreTally(), Progress("score", saved.rows, "responses")
    refuse_missing_rule(rule)
    for table in saved.tables():
        scores, lost = scored(rule, table, settings)
        tally.add(table, scores)
        tally.lost.update(lost)
        progress.add(table.num_rows, f"  score {tally.mean():.4f}")
    tell(dict(saved.facts) | {"by": rule}, tally, output)
    return 0


def _score_settings(rule: str, sets: Sequence[str]) -> Any:
    """Give the settings of the node that scores, checked as they are for a run."""
    own, chosen = split_assignments([], sets)
    others = [name for name in (*own, *chosen) if not name.startswith("score.")]
    if others:
        what = f"`{others[0]}` is for drawing responses, and these are drawn already"
        raise UsageError(what, where="--set", hint="only score.… can be set")
    graph, _ = resolve_settings(named(respond_and_score.graph({"by": rule})), (), chosen)
    return next(node.settings for node in graph.nodes if node.op.kind == "score")


def refuse_missing_rule(rule: str) -> None:
    """Refuse a rule that is not there, as far as can be told without running its file."""
    if rule != "data":
        refuse_missing(resolve(rule))


def refuse_unknown_rule(rule: str, table: pa.Table) -> None:
    """Refuse a rule that is not there, and with "data" rows whose data source has none."""
    refuse_missing_rule(rule)
    there = "data_source" in table.column_names
    sources = table.column("data_source").unique().to_pylist() if there else [""]
    for source in sources if rule == "data" else ():
        try:
            rule_for(str(source))
        except RuleError as error:
            raise RuleError(error.what, notes=error.notes, hint="--by RULE, such as exact or rules.py:name") from None


def scored(rule: str, table: pa.Table, settings: Any) -> tuple[Any, Mapping[str, int]]:
    """Score responses as the node `score` does, without torch: [B] float32, and how many failed or were unreadable."""
    import numpy as np

    rows, places = rule_rows(table), defaultdict[str, list[int]](list)
    refuse_unknown_rule(rule, table)
    for place, row in enumerate(rows):
        places[rule if rule != "data" else _rule_of(row)].append(place)
    scores, lost = np.zeros(len(rows), np.float32), Counter[str]()
    more = {} if settings.format_score is None else {"format_score": settings.format_score}
    for name, chosen in places.items():
        limits = {"call_limit_s": settings.call_limit_s, "allow": settings.allow}
        with Graders(settings.workers, settings.limit_s, **limits) as graders:
            graded = graders.grade(resolve(name), [rows[i] for i in chosen], more, on_error=settings.on_error)
        scores[chosen] = np.array(graded.scores, np.float32)
        lost.update(rule_failures=graded.failures, unreadable=graded.unreadable)
    return scores, lost


def _rule_of(row: Mapping[str, object]) -> str:

    return rule_for(str(row["data_source"]) if "data_source" in row else "")


def tell(facts: Mapping[str, Any], tally: ScoreTally, output: Output) -> None:
    """Print what the responses tell, as text or JSON; write it to a JSON file if one is named."""
    marks = tally.marks()
    whole, apart = reported(marks), {name: reported(each) for name, each in marks.by_source().items()}
    about = dict(facts) | {"interval": INTERVAL} | {name: tally.lost[name] for name in LOST}
    by_source = {name: asdict(each) for name, each in apart.items()}
    told = json.dumps({"about": about, "report": asdict(whole), "by_source": by_source}, indent=1)
    if output.out is not None and output.out.suffix == ".json":
        write_text(output.out, told + "\n")
    if output.as_json:
        print(told)
        return
    print(_head(about))
    print_table(["", "mean", "±"], list(_lines(whole, tally.lost)))
    if apart:
        print_table(["data_source", "prompts", "score", "±", "pass@1", "±"], [_line(*each) for each in apart.items()])
    print(f"± is the {INTERVAL}")


def _head(about: Mapping[str, Any]) -> str:
    """Say in a line what was asked of which model.

    >>> _head({"model": "tiny", "data": "digits", "split": "held-out", "prompts": 9, "n": 2, "by": "data"})
    'tiny, digits (9 held-out prompts), n=2, rule data'
    """
    model = about.get("model", "responses")
    after = "" if about.get("step") is None else f" after step {about['step']}"
    kind = f"{about['split']} " if about.get("split") else ""
    data = f"{about['data']} ({about['prompts']} {kind}prompts)" if "data" in about else ""
    done = f"the first {about['done']} of them" if "done" in about else ""
    settings = [f"{name}={about[name]:g}" for name in ("n", "temperature", "max_tokens", "seed") if name in about]
    return ", ".join(each for each in (f"{model}{after}", data, done, *settings, f"rule {about['by']}") if each)


def _lines(report: ScoreReport, lost: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:

    yield ("score", *_shown(report.score))
    for k in shown_ks(list(report.pass_at)):
        yield (f"pass@{k}", *_shown(report.pass_at[k]))
    if report.tokens is not None:
        spread = f"median {report.tokens.median:g}, most {report.tokens.most}"
        yield "response tokens", f"{report.tokens.mean:.2f}", spread
    if report.truncated is not None:
        yield "truncated", f"{report.truncated:.4f}", ""
    for name in LOST:
        if lost.get(name):
            yield name.replace("_", " "), str(lost[name]), ""


def _shown(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.mean:.4f}", "" if estimate.half_width is None else f"{estimate.half_width:.4f}"


def _line(source: str, report: ScoreReport) -> tuple[str, ...]:
    return source, str(report.prompts), *_shown(report.score), *_shown(report.pass_at[1])
