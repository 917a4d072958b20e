"""`eval`: sample responses to held-out prompts, score them and sum the scores up; or score those of a file again."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.generations import BatchFiles, GenerationsFile, check_out, partial_path, parts_for, rule_rows
from flowgraph.app.request import Request, Say
from flowgraph.app.sampling import LOST, Progress, SamplingRun, keep, prepare_sampling, sample, select_prompts
from flowgraph.app.weights import model_under_test, named_model
from flowgraph.app.written_files import write_text
from flowgraph.errors import RuleError, UsageError
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.passes import named
from nodes.evaluation import respond_and_score
from nodes.evaluation.estimates import INTERVAL, Marks, reported
from nodes.scoring.graders import Graders
from nodes.scoring.rules import refuse_missing, refuse_missing_truths, resolve, rule_for

if TYPE_CHECKING:
    import pyarrow as pa

    from nodes.evaluation.estimates import ScoreReport

ENDINGS = (".parquet", ".json")


@dataclass(frozen=True, kw_only=True, repr=False)
class EvalResult:
    """What responses tell: mean score, pass@k and lengths, each with its interval, of all rows and by `data_source`.

    `about` holds the model, the prompts and the settings; `report` is None where nothing was done before an interrupt.
    """

    about: Mapping[str, Any]
    report: ScoreReport | None
    by_source: Mapping[str, ScoreReport] = field(default_factory=dict[str, "ScoreReport"])
    interrupted: bool = False

    def data(self) -> dict[str, Any]:
        """Return it as `flowgraph eval --json` prints it."""
        report = None if self.report is None else asdict(self.report)
        by_source = {name: asdict(each) for name, each in self.by_source.items()}
        return {"about": dict(self.about), "report": report, "by_source": by_source}

    def __repr__(self) -> str:
        score = "nothing was scored" if self.report is None else f"score {self.report.score.mean:.4f}"
        return f"<evaluation of {self.about.get('model', 'responses')}: {score}>"


class ScoreTally:
    """What a report is made of: some numbers a response, batch by batch."""

    def __init__(self) -> None:
        self._columns = defaultdict[str, list[Any]](list)
        self.lost = Counter[str]()

    def add(self, table: pa.Table, scores: Any = None) -> None:
        """Add the rows of a table of generations; `scores`, one number per row, replace its column `score`."""
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
        """Return all rows."""
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
        """Return the mean score so far."""
        parts = self._columns["score"]
        return float(sum(part.sum(dtype="float64") for part in parts)) / sum(map(len, parts))


def evaluate_request(request: Request, say: Say, progress: Progress) -> EvalResult:
    """Evaluate a model, or responses that are there already, whichever is named."""
    generations, sampling, workload = request.sampling.generations, request.sampling, request.workload
    if generations is None:
        return _evaluate_model(named_model(sampling.subject, "eval"), request, say, progress)
    given = {
        "MODEL": sampling.subject,
        "--param": sampling.param,
        "--data": workload.data,
        "--held-out": workload.held_out,
    }
    others = [name for name, value in given.items() if value is not None]
    if others:
        what = f"responses are there already, so {others[0]} has no effect"
        raise UsageError(what, where=f"--generations {generations}")
    return _evaluate_saved(generations, request, progress)


def _evaluate_model(subject: str, request: Request, say: Say, progress: Progress) -> EvalResult:
    """Sample responses of a model and score them."""
    out = request.output.out
    if out is not None:
        check_out(out, ENDINGS, request.output.overwrite)
    model = model_under_test(subject, request.sampling.param, request.workload.cache)
    prompts = select_prompts(request, model, say)
    rule = request.sampling.by or model.by or "data"
    refuse_unknown_rule(rule, prompts.table)
    refuse_missing_truths(rule, prompts.table, prompts.name)
    if request.sampling.temperature is None:
        request = request.changed(temperature=float(request.sampling.n > 1))
    run = prepare_sampling(respond_and_score, request, model, prompts, {"by": rule}, say)
    whole = out is not None and out.suffix == ".parquet"
    with parts_for(out if whole else None) as parts:
        return _evaluate_into(parts, run, {"by": rule}, out, say, progress)


def _evaluate_into(
    parts: BatchFiles, run: SamplingRun, more: Mapping[str, Any], out: Path | None, say: Say, progress: Progress
) -> EvalResult:
    import pyarrow.parquet as pq

    whole = out if out is not None and out.suffix == ".parquet" else None
    tally, prompts = ScoreTally(), 0
    show = progress("eval", run.prompts.table.num_rows, "prompts")

    def done(path: Path, lost: Mapping[str, int]) -> None:
        nonlocal prompts
        table = pq.read_table(path, page_checksum_verification=True)
        tally.add(table)
        tally.lost.update(lost)
        prompts += table.num_rows // run.facts["n"]
        show(table.num_rows // run.facts["n"], f"  score {tally.mean():.4f}")
        if whole is None:
            path.unlink()

    facts = {**run.facts, **more}
    try:
        facts = sample(run, parts, done, more, say)
    except KeyboardInterrupt:
        keep(parts, whole, facts, prompts, say)
        if not prompts:
            return EvalResult(about=facts, report=None, interrupted=True)
        left = None if out is None or whole is not None else partial_path(out)
        return _result(facts | {"done": prompts}, tally, left, interrupted=True)
    except Exception:
        keep(parts, whole, facts, prompts, say)
        raise
    if whole is not None:
        parts.join(whole, facts)
    return _result(facts, tally, out)


def _evaluate_saved(path: Path, request: Request, progress: Progress) -> EvalResult:
    """Score the responses of a file again, without any model."""
    out = request.output.out
    if out is not None:
        check_out(out, ENDINGS[1:], request.output.overwrite)
    saved = GenerationsFile.open(path)
    rule = request.sampling.by or str(saved.facts.get("by", "data"))
    settings = _score_settings(rule, request.workload.settings)
    tally, show = ScoreTally(), progress("score", saved.rows, "responses")
    refuse_missing_rule(rule)
    for table in saved.tables():
        scores, lost = scored(rule, table, settings)
        tally.add(table, scores)
        tally.lost.update(lost)
        show(table.num_rows, f"  score {tally.mean():.4f}")
    return _result(dict(saved.facts) | {"by": rule}, tally, out)


def _score_settings(rule: str, sets: Sequence[str]) -> Any:
    """Return the settings of the node that scores, checked as they are for a run."""
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


def _result(facts: Mapping[str, Any], tally: ScoreTally, out: Path | None, *, interrupted: bool = False) -> EvalResult:
    """Sum the scores up; write them to a JSON file if one is named."""
    marks = tally.marks()
    result = EvalResult(
        about=dict(facts) | {"interval": INTERVAL} | {name: tally.lost[name] for name in LOST},
        report=reported(marks),
        by_source={name: reported(each) for name, each in marks.by_source().items()},
        interrupted=interrupted,
    )
    if out is not None and out.suffix == ".json":
        write_text(out, json.dumps(result.data(), indent=1) + "\n")
    return result
