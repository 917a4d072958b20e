"""The scores of responses as tables, for `eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.cli.output import print_table, say

if TYPE_CHECKING:
    from flowgraph import app
    from nodes.evaluation.estimates import Estimate

LOST = ("rule_failures", "unreadable")


def print_scores(result: app.EvalResult) -> None:
    """Print a table of scores and pass@k with their intervals, and of lengths; and one of scores by data source.

    The second table is left out for fewer than two sources. The first table also has the share of truncated responses,
    if known, and the numbers of responses whose rule failed or found nothing to score, if any. `result.report` must not
    be None.
    """
    from nodes.evaluation.estimates import INTERVAL, shown_ks

    report, about = result.report, result.about
    assert report is not None, "something was scored"
    say(_head(about), fit=True)
    rows = [("score", *_cells(report.score))]
    rows += [(f"pass@{k}", *_cells(report.pass_at[k])) for k in shown_ks(list(report.pass_at))]
    if (tokens := report.tokens) is not None:
        rows.append(("response tokens", f"{tokens.mean:.2f}", f"median {tokens.median:g}, most {tokens.most}"))
    if report.truncated is not None:
        rows.append(("truncated", f"{report.truncated:.4f}", ""))
    rows += [(name.replace("_", " "), str(about[name]), "") for name in LOST if about.get(name)]
    print_table(["", "mean", "±"], rows)
    if result.by_source:
        sources = [
            (source, str(scores.prompts), *_cells(scores.score), *_cells(scores.pass_at[1]))
            for source, scores in result.by_source.items()
        ]
        print_table(["data_source", "prompts", "score", "±", "pass@1", "±"], sources)
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


def _cells(estimate: Estimate) -> tuple[str, str]:
    return f"{estimate.mean:.4f}", "" if estimate.half_width is None else f"{estimate.half_width:.4f}"
