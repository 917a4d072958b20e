"""`generate`: responses to prompts; of a data set into a file that can be scored later, of texts as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.app.request import Request, Say
from flowgraph.app.responses.generations import BatchFiles, check_out, parts_for
from flowgraph.app.responses.sampling import (
    Progress,
    SamplingRun,
    keep,
    prepare_sampling,
    prompts_of,
    sample,
    select_prompts,
)
from flowgraph.app.responses.weights import model_under_test, named_model
from flowgraph.errors import UsageError
from nodes.evaluation import respond

COLUMNS = ("prompt_index", "sample_index", "prompt", "response", "finished")
TEMPERATURE = 1.0  # where the request names none


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """Responses: of texts as `rows`, of a data set in the file `out`, a row for each response."""

    rows: tuple[Mapping[str, Any], ...] = ()
    out: Path | None = None
    interrupted: bool = False

    @property
    def responses(self) -> list[str]:
        """Return the responses to texts, prompt by prompt."""
        return [str(row["response"]) for row in self.rows]

    def data(self) -> list[dict[str, Any]]:
        """Return the rows with the texts that were their prompts."""
        return [dict(row) | {"prompt": row["prompt"][0]["content"]} for row in self.rows]


def generate_request(request: Request, say: Say, progress: Progress) -> GenerateResult:
    """Sample responses into a file, or as rows where the prompts are texts."""
    texts, out = request.sampling.prompt, request.output.out
    if out is not None:
        check_out(out, (".parquet",), request.output.overwrite)
    elif not texts:
        raise UsageError("needs an output file", where="generate", hint="-o FILE.parquet")
    _refuse_both(request)
    model = model_under_test(
        named_model(request.sampling.subject, "generate"), request.sampling.param, request.workload.cache
    )
    prompts = prompts_of(texts) if texts else select_prompts(request, model, say)
    if request.sampling.temperature is None:
        request = request.changed(temperature=TEMPERATURE)
    run = prepare_sampling(respond, request, model, prompts, {}, say)
    with parts_for(out) as parts:
        return _generate_into(parts, run, out, say, progress, as_rows=bool(texts))


def _refuse_both(request: Request) -> None:
    """Refuse prompts from two places."""
    workload, sampling = request.workload, request.sampling
    given = {
        "--data": workload.data,
        "--held-out": workload.held_out,
        "--split": sampling.split,
        "--rows": sampling.rows,
    }
    others = [name for name, value in given.items() if value is not None]
    if sampling.prompt and others:
        raise UsageError(f"the prompts are given, so {others[0]} has no effect", where="--prompt")


def _generate_into(
    parts: BatchFiles, run: SamplingRun, out: Path | None, say: Say, progress: Progress, *, as_rows: bool
) -> GenerateResult:
    import pyarrow.parquet as pq

    prompts, show = 0, progress("generate", run.prompts.table.num_rows, "prompts")

    def done(path: Path, lost: Mapping[str, int]) -> None:
        nonlocal prompts
        more = pq.read_metadata(path).num_rows // run.facts["n"]
        prompts += more
        show(more, "")

    try:
        facts = sample(run, parts, done, {}, say)
    except KeyboardInterrupt:
        keep(parts, out, run.facts, prompts, say)
        return GenerateResult(interrupted=True)
    except Exception:
        keep(parts, out, run.facts, prompts, say)
        raise
    files = parts.there() if as_rows else []
    rows = [row for path in files for row in pq.read_table(path, columns=list(COLUMNS)).to_pylist()]
    if out is not None:
        parts.join(out, facts)
    return GenerateResult(rows=tuple(rows), out=out)
