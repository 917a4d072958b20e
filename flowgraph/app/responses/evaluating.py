"""`eval`: sample responses to held-out prompts and score them, or score responses in a file again."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.request import Request, Say
from flowgraph.app.responses.generations import GenerationsFile, partial_path, refuse_output, rule_rows
from flowgraph.app.responses.sampling import FAILURES, Progress, prepare_sampling, sample_responses, select_prompts
from flowgraph.app.responses.weights import model_under_test
from flowgraph.app.user_files import write_text
from flowgraph.errors import RuleError, UsageError
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.passes import named
from nodes.evaluation import respond_and_score
from nodes.evaluation.estimates import INTERVAL, Marks, reported
from nodes.scoring.graders import Graders
from nodes.scoring.rules import is_for_a_model, refuse_missing, refuse_unscorable, resolve, rule_for

if TYPE_CHECKING:
    import pyarrow as pa

    from nodes.evaluation.estimates import ScoreReport

ENDINGS = (".parquet", ".json")


@dataclass(frozen=True, kw_only=True, repr=False)
class EvalResult:
    """Mean score, pass@k and lengths of responses, each with its interval, over all rows and by `data_source`.

    `about` holds the model, the prompts and the settings; `report` is None if an interrupt came before the first score.
    `by_source` is empty for fewer than two sources.
    """

    about: Mapping[str, Any]
    report: ScoreReport | None
    by_source: Mapping[str, ScoreReport] = field(default_factory=dict[str, "ScoreReport"])
    interrupted: bool = False

    def data(self) -> dict[str, Any]:
        """Return what `flowgraph eval --json` prints: `about`, the `report` over all rows, and reports `by_source`.

        A report is a ScoreReport as a dict; `report` is None if nothing was scored.
        """
        report = None if self.report is None else asdict(self.report)
        by_source = {name: asdict(source) for name, source in self.by_source.items()}
        return {"about": dict(self.about), "report": report, "by_source": by_source}

    def __repr__(self) -> str:
        score = "nothing was scored" if self.report is None else f"score {self.report.score.mean:.4f}"
        return f"<evaluation of {self.about.get('model', 'responses')}: {score}>"


class ScoreTally:
    """Scores and lengths of responses, collected batch by batch for a report."""

    def __init__(self) -> None:
        self._columns = defaultdict[str, list[Any]](list)
        self.failures = Counter[str]()

    def add(self, table: pa.Table, failures: Mapping[str, int], scores: Any = None) -> str:
        """Add the rows, at least one, of a table of generations; return the mean score of all rows so far as text.

        `scores`, one number per row, replace the column `score`; `failures` count the responses that failed, by kind of
        failure.
        """
        import pyarrow.compute as pc

        columns = {name: table.column(name) for name in ("finished", "data_source") if name in table.column_names}
        columns |= {"prompt": table.column("prompt_index")}
        if "response_ids" in table.column_names:
            columns["tokens"] = pc.call_function("list_value_length", [table.column("response_ids")])
        arrays = {name: column.to_numpy() for name, column in columns.items()}
        arrays["score"] = table.column("score").to_numpy() if scores is None else scores
        for name, array in arrays.items():
            self._columns[name].append(array)
        self.failures.update(failures)
        parts = self._columns["score"]
        mean = float(sum(part.sum(dtype="float64") for part in parts)) / sum(map(len, parts))
        return f"  score {mean:.4f}"

    def result(self, facts: Mapping[str, Any], out: Path | None, *, interrupted: bool = False) -> EvalResult:
        """Return the evaluation of all added rows, at least one; if `out` is a `.json` file, also write it there.

        `facts` become part of the result's `about`. Raises UsageError if the file cannot be written.
        """
        import numpy as np

        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        source = columns.get("data_source")
        marks = Marks(
            prompt=columns["prompt"],
            score=columns["score"].astype(np.float32),
            tokens=columns["tokens"].astype(np.int64) if "tokens" in columns else None,
            finished=columns["finished"].astype(np.bool_) if "finished" in columns else None,
            source=None if source is None else source.astype(str),
        )
        result = EvalResult(
            about=dict(facts) | {"interval": INTERVAL} | {name: self.failures[name] for name in FAILURES},
            report=reported(marks),
            by_source={name: reported(part) for name, part in marks.by_source().items()},
            interrupted=interrupted,
        )
        if out is not None and out.suffix == ".json":
            write_text(out, json.dumps(result.data(), indent=1) + "\n")
        return result


def evaluate_request(request: Request, say: Say, progress: Progress) -> EvalResult:
    """Sample and score responses of a model, or score those in the file that a request names; return the evaluation.

    Writes the output file of the request, if there is one: responses with scores (`.parquet`, only for a model) or the
    report (`.json`). `progress` makes the function that receives the progress. After an interrupt of sampling, the
    finished prompts are evaluated, and the file's name gets `.partial` before its suffix. Raises UsageError for options
    of a model together with a file of responses, and for an output file that exists (unless `overwrite` is set) or has
    another suffix; SettingError for a setting that does not exist; RuleError for a rule that cannot be used; DataError
    for a file of responses that cannot be used; and the errors of `model_under_test`, `select_prompts`,
    `prepare_sampling` and `sample_responses`.
    """
    generations, sampling, workload = request.sampling.generations, request.sampling, request.workload
    if generations is None:
        return _evaluate_model(request, say, progress)
    options = {
        "MODEL": sampling.subject,
        "--param": sampling.param,
        "--data": workload.data or None,
        "--held-out": workload.held_out or None,
        "--columns": workload.columns or None,
        "--max-prompt-tokens": workload.max_prompt_tokens,
    }
    if names := [name for name, value in options.items() if value is not None]:
        what = f"the file already has responses, so {names[0]} has no effect"
        raise UsageError(what, where=f"--generations {generations}")
    return _evaluate_saved(generations, request, progress)


def _evaluate_model(request: Request, say: Say, progress: Progress) -> EvalResult:
    import pyarrow.parquet as pq

    out = request.output.out
    if out is not None:
        refuse_output(out, ENDINGS, request.output.overwrite)
    model = model_under_test(request, "eval")
    prompts = select_prompts(request, model, say)
    rule = request.sampling.by or model.by or "data"
    refuse_unscorable(rule, prompts.table, prompts.name)
    _refuse_unknown_rule(rule, prompts.table)
    if request.sampling.temperature is None:
        request = request.changed(temperature=float(request.sampling.n > 1))
    run = prepare_sampling(respond_and_score, request, model, prompts, {"by": rule}, say)
    tally, table_out = ScoreTally(), out if out is not None and out.suffix == ".parquet" else None

    def read(path: Path, failures: Mapping[str, int]) -> str:
        return tally.add(pq.read_table(path, page_checksum_verification=True), failures)

    end = sample_responses(run, table_out, read, {"by": rule}, say, progress("eval", prompts.table.num_rows, "prompts"))
    if not end.interrupted:
        return tally.result(end.facts, out)
    if not end.prompts:
        return EvalResult(about=end.facts, report=None, interrupted=True)
    partial = None if out is None or table_out is not None else partial_path(out)
    return tally.result({**end.facts, "done": end.prompts}, partial, interrupted=True)


def _evaluate_saved(path: Path, request: Request, progress: Progress) -> EvalResult:
    out = request.output.out
    if out is not None:
        refuse_output(out, ENDINGS[1:], request.output.overwrite)
    saved = GenerationsFile.open(path)
    rule = request.sampling.by or str(saved.facts.get("by", "data"))
    flow_settings, chosen = split_assignments([], request.workload.settings)
    for name in (*flow_settings, *chosen):
        if not name.startswith("score."):
            what = f"`{name}` is for sampling responses, but the file already has them"
            raise UsageError(what, where="--set", hint="only score.… can be set")
    graph, _ = resolve_settings(named(respond_and_score.graph({"by": rule})), (), chosen)
    settings = next(node.settings for node in graph.nodes if node.op.kind == "score")
    tally, show = ScoreTally(), progress("score", saved.rows, "responses")
    if rule != "data":
        refuse_missing(resolve(rule))
    for table in saved.tables():
        scores, failures = score_table(rule, table, settings)
        show(table.num_rows, tally.add(table, failures, scores))
    return tally.result({**saved.facts, "by": rule}, out)


def _refuse_unknown_rule(rule: str, table: pa.Table) -> None:
    if rule != "data":
        refuse_missing(resolve(rule))
        return
    sources = table.column("data_source").unique().to_pylist() if "data_source" in table.column_names else [""]
    for source in sources:
        try:
            rule_for(str(source))
        except RuleError as error:
            raise RuleError(error.what, notes=error.notes, hint="--by RULE, such as exact or rules.py:name") from None


def score_table(rule: str, table: pa.Table, settings: Any) -> tuple[Any, Mapping[str, int]]:
    """Score a table of generations; return the scores, [B] float32, and how many responses failed, by kind of failure.

    A response fails if its rule fails (`rule_failures`) or finds nothing to score in the response (`unreadable`).
    `rule` is the name of a rule; with "data", each row is scored by the rule of its data source. `settings` are those
    of the node `score`, which computes scores in the same way. Raises RuleError for a rule that cannot be used, for a
    row that only a model can score, and for a failed response if `settings.on_error` asks for that.
    """
    import numpy as np

    rows, places = rule_rows(table), defaultdict[str, list[int]](list)
    _refuse_unknown_rule(rule, table)
    for place, row in enumerate(rows):
        if rule == "data" and is_for_a_model(row):
            raise RuleError.for_a_model(f"row {place} (from 0)")
        places[rule if rule != "data" else rule_for(str(row.get("data_source", "")))].append(place)
    scores, failures = np.zeros(len(rows), np.float32), Counter[str]()
    arguments = {} if settings.format_score is None else {"format_score": settings.format_score}
    for name, chosen in places.items():
        limits = {"call_limit_s": settings.call_limit_s, "allow": settings.allow}
        with Graders(settings.workers, settings.limit_s, **limits) as graders:
            graded = graders.grade(resolve(name), [rows[i] for i in chosen], arguments, on_error=settings.on_error)
        scores[chosen] = np.array(graded.scores, np.float32)
        failures.update(rule_failures=graded.failures, unreadable=graded.unreadable)
    return scores, failures
