"""`rollouts`: read the recorded responses of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say, write
from flowgraph.cli.rollout_text import print_rollouts
from flowgraph.errors import UsageError


def rollouts(
    run: opt.RunPath,
    step: Annotated[int | None, opt.option("--step K", "The step, counted from 0. Default: the last.", min=0)] = None,
    sort: Annotated[
        str | None, opt.option("--sort COLUMN", "Sort by a column; `-COLUMN` puts the highest first.")
    ] = None,
    where: Annotated[
        str | None, opt.option("--where CONDITION", "Only these, e.g. 'score < 0.5 and data_source = \"math\"'.")
    ] = None,
    limit: Annotated[
        int | None, opt.option("--limit N", "Maximum number of responses. Default: 10, or 50 on a page.", min=1)
    ] = None,
    node: Annotated[
        str | None,
        opt.option("--node NODE", "The node that sampled them, or `validation` for those of held-out prompts."),
    ] = None,
    out: Annotated[Path | None, opt.option("-o, --out FILE.html", "Write a page with coloured tokens.")] = None,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Print the responses that a run sampled, with their scores.

    With -o, write them to a page instead. Columns are prompt, sample, length, finished, logprob, version, the results
    of nodes, such as score, and those of the data set.
    """
    if out is not None and out.suffix != ".html":
        raise UsageError("a page is written as .html", where=f"-o {out}", hint="--json prints the rows as data")
    limit = limit or (app.PAGE_ROWS if out is not None else None)
    result = app.rollout_rows(run, step=step, node=node, sort=sort, where=where, limit=limit)
    if out is not None:
        write(out, app.rollouts_page(result, cache, note))
        say(out)
    elif json:
        print_json(result.data())
    else:
        print_rollouts(result)
