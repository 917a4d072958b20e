"""`generate`: responses to prompts; of a data set into a file that can be scored later, of a command line to print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.cli.evaluate import Output
from flowgraph.cli.generations import BatchFiles, check_out, parts_for
from flowgraph.cli.interrupts import INTERRUPTED
from flowgraph.cli.sampling import Progress, SamplingRequest, SamplingRun, asking_of, draw, keep, prepared, prompts_of
from flowgraph.cli.weights import named_model, subject_of
from flowgraph.errors import UsageError
from nodes.evaluation import respond

TOLD = ("prompt_index", "sample_index", "prompt", "response", "finished")


def generate_responses(
    model: str | None, param: str | None, wanted: SamplingRequest, texts: Sequence[str], output: Output
) -> int:
    """Draw responses into a file, or to print where the prompts are texts; give the exit code."""
    if output.out is not None:
        check_out(output.out, (".parquet",), output.overwrite)
    elif not texts:
        raise UsageError("says not where to write", where="generate", hint="-o FILE.parquet")
    refuse_both(wanted, texts)
    subject = subject_of(named_model(model, "generate"), param, wanted.cache)
    asking = prompts_of(texts) if texts else asking_of(wanted, subject)
    drawing = prepared(respond, wanted, subject, asking, {})
    with parts_for(output.out) as parts:
        return _generate_into(parts, drawing, output, shown=bool(texts))


def refuse_both(wanted: SamplingRequest, texts: Sequence[str]) -> None:
    """Refuse prompts from two places."""
    given = {"--data": wanted.data, "--held-out": wanted.held_out, "--split": wanted.split, "--rows": wanted.rows}
    others = [name for name, value in given.items() if value is not None]
    if texts and others:
        raise UsageError(f"the prompts are given, so {others[0]} says nothing", where="--prompt")


def _generate_into(parts: BatchFiles, drawing: SamplingRun, output: Output, *, shown: bool) -> int:
    import pyarrow.parquet as pq

    progress = Progress("generate", drawing.asking.table.num_rows)

    def done(path: Path, lost: Mapping[str, int]) -> None:
        progress.add(pq.read_metadata(path).num_rows // drawing.facts["n"])

    try:
        facts = draw(drawing, parts, done, {})
    except KeyboardInterrupt:
        keep(parts, output.out, drawing.facts, progress)
        return INTERRUPTED
    except Exception:
        keep(parts, output.out, drawing.facts, progress)
        raise
    if shown:
        show(
            [row for path in parts.there() for row in pq.read_table(path, columns=list(TOLD)).to_pylist()],
            output.as_json,
        )
    if output.out is not None:
        parts.join(output.out, facts)
        if not shown:
            print(output.out)
    return 0


def show(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print responses: one as it is, several under a line each that says which it is; or as JSON."""
    if as_json:
        print(json.dumps([row | {"prompt": row["prompt"][0]["content"]} for row in rows], indent=1))
        return
    for row in rows:
        if len(rows) > 1:
            print(f"[prompt {row['prompt_index']}, sample {row['sample_index']}]")
        print(row["response"])
