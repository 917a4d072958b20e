"""The scores of responses as tables, for `eval`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.cli.output import print_table, say

if TYPE_CHECKING:
    from flowgraph import app
    from nodes.evaluation.estimates import Estimate, ScoreReport

LOST = ("rule_failures", "unreadable")


def print_scores(result: app.EvalResult) -> None:
    """Print tables of scores, pass@k and lengths with their intervals: over all rows, and by data source.

    `result.report` must not be None.
    """
    from nodes.evaluation.estimates import INTERVAL

    assert result.report is not None, "something was scored"
    say(_head(result.about), fit=True)
    print_table(["", "mean", "±"], list(_lines(result.report, result.about)))
    if result.by_source:
        rows = [
            (source, str(report.prompts), *_cells(report.score), *_cells(report.pass_at[1]))
            for source, report in result.by_source.items()
        ]
        print_table(["data_source", "prompts", "score", "±", "pass@1", "±"], rows)
    say(f"± is the {INTERVAL}")


def _head(about: Mapping[str, Any]) -> str:
    """Return the model, the prompts and the settings in a line.

    >>> _head({"model": "tiny", "data": "digits", "split": "held-out", "prompts": 9, "n": 2, "by": "data"})
    'tiny, digits (9 held-out prompts), n=2, rule data'
    """
    model = about.get("model", "responses")
    after = "" if about.get("step") is None else f" after step {about['step']}"
    kind = f"{about['split']} " if about.get("split") else ""
    data = f"{about['data']} ({about['prompts']} {kind}prompts)" if "data" in about else ""
    scored = f"the first {about['done']} of them" if "done" in about else ""
    settings = [f"{name}={about[name]:g}" for name in ("n", "temperature", "max_tokens", "seed") if name in about]
    return ", ".join(filter(None, (f"{model}{after}", data, scored, *settings, f"rule {about['by']}")))


def _lines(report: ScoreReport, about: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    from nodes.evaluation.estimates import shown_ks

    yield ("score", *_cells(report.score))
    for k in shown_ks(list(report.pass_at)):
        yield (f"pass@{k}", *_cells(report.pass_at[k]))
    if report.tokens is not None:
        spread = f"median {report.tokens.median:g}, most {report.tokens.most}"
        yield "response tokens", f"{report.tokens.mean:.2f}", spread
    if report.truncated is not None:
        yield "truncated", f"{report.truncated:.4f}", ""
    for name in LOST:
        if about.get(name):
            yield name.replace("_", " "), str(about[name]), ""


def _cells(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.mean:.4f}", "" if estimate.half_width is None else f"{estimate.half_width:.4f}"
