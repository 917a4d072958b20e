"""`generate`: responses to prompts; of a data set into a file that can be scored later, of texts as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.app.request import Request, Say
from flowgraph.app.responses.generations import check_out
from flowgraph.app.responses.sampling import Progress, prepare_sampling, prompts_of, sample, select_prompts
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
    import pyarrow.parquet as pq

    texts, out = request.sampling.prompt, request.output.out
    if out is not None:
        check_out(out, (".parquet",), request.output.overwrite)
    elif not texts:
        raise UsageError("needs an output file", where="generate", hint="-o FILE.parquet")
    workload, sampling = request.workload, request.sampling
    options = {
        "--data": workload.data,
        "--held-out": workload.held_out,
        "--split": sampling.split,
        "--rows": sampling.rows,
    }
    names = [name for name, value in options.items() if value is not None]
    if texts and names:
        raise UsageError(f"the prompts are given, so {names[0]} has no effect", where="--prompt")
    model = model_under_test(named_model(sampling.subject, "generate"), sampling.param, workload.cache)
    prompts = prompts_of(texts) if texts else select_prompts(request, model, say)
    if sampling.temperature is None:
        request = request.changed(temperature=TEMPERATURE)
    run = prepare_sampling(respond, request, model, prompts, {}, say)
    rows = list[Mapping[str, Any]]()

    def read(path: Path, failures: Mapping[str, int]) -> str:
        if texts:
            rows.extend(pq.read_table(path, columns=list(COLUMNS)).to_pylist())
        return ""

    end = sample(run, out, read, {}, say, progress("generate", prompts.table.num_rows, "prompts"))
    return GenerateResult(interrupted=True) if end.interrupted else GenerateResult(rows=tuple(rows), out=out)
