"""`rollouts`: the recorded responses of a step, or of a check of held-out data, as rows that can be read.

The files of a run's folder are data that anybody may have written: types of columns are checked, and nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.responses.row_filter import Scalar, parse_condition, unknown_column
from flowgraph.errors import DataError, RunFolderError, UsageError, nearest
from flowgraph.runtime.record.recorded_values import TYPES
from flowgraph.runtime.record.run_folder import ROLLOUT, ROLLOUTS, VALIDATION, RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10  # that are returned where no number is given
MOST_FILE_BYTES = 2**34  # of the columns of one file, uncompressed
MOST_NAMES = 60  # of columns
SAMPLED = "logprobs"  # the part of a rollout with the log-probs of the tokens when they were sampled

_IDENTITY = frozenset(("group", "sample", "trajectory", "versions", "finished"))
_PARTS = _IDENTITY | frozenset(("context", "tokens", "mask", "lengths", "logprobs", "text"))
_DATA = "columns."


@dataclass(frozen=True, kw_only=True)
class RolloutRow:
    """A recorded response: `values` has a number or text for each column, `prompt` the messages as (role, text).

    `tokens` are the ids of the response, `logprobs` the tokens' log-probs when sampled, in nats, and `token_values` has
    a number for each token, by the name of the node that computed the number. A missing value of a column is None, a
    missing number of a token NaN.
    """

    values: Mapping[str, Scalar]
    prompt: tuple[tuple[str, str], ...]
    response: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    token_values: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def data(self) -> dict[str, Any]:
        """Return the row as JSON-compatible data: its `values` by column, the prompt as `messages`, and the `response`.

        Each message has a `role` and `content`. Values of tokens are left out, and numbers that are not finite become
        None.
        """
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.values.items()
        }
        messages = [{"role": role, "content": text} for role, text in self.prompt]
        return values | {"messages": messages, "response": self.response}


@dataclass(frozen=True, kw_only=True)
class RolloutRows:
    """The recorded responses of one step of a run, sorted and filtered.

    `node` is the node that sampled them, or "validation". `total` responses are recorded, and `matching` of them meet
    the condition; `rows` are the first of these. `results` are the columns with results of nodes for whole responses,
    such as scores, `token_results` those with a mean over tokens, and `types` the types of both, as text.
    """

    run: Path
    node: str
    step: int
    total: int
    matching: int
    columns: tuple[str, ...]
    results: tuple[str, ...]
    token_results: tuple[str, ...]
    types: Mapping[str, str]
    rows: tuple[RolloutRow, ...]

    def data(self) -> dict[str, Any]:
        """Return what `flowgraph rollouts --json` prints: `run`, `node`, `step`, `total`, `matching` and the `rows`."""
        about = {"run": str(self.run), "node": self.node, "step": self.step}
        about |= {"total": self.total, "matching": self.matching}
        return about | {"rows": [row.data() for row in self.rows]}

    def __repr__(self) -> str:
        return f"<{len(self.rows)} of {self.total} responses of {self.node} in step {self.step} of {self.run}>"


def rollout_rows(
    path: Path,
    *,
    step: int | None = None,
    node: str | None = None,
    sort: str | None = None,
    where: str | None = None,
    limit: int | None = None,
) -> RolloutRows:
    """Return recorded responses of one step of a run: of `step`, from 0, or by default of the last recorded step.

    `node` is the node that sampled the responses, by default the first by name, or "validation" for a check of held-out
    prompts. `sort` is a column, with `-` in front for the highest first; rows without a value come last. `where` is a
    condition, see `row_filter`. At most `limit` rows are returned, 10 by default, and at most 60 columns. Raises
    UsageError for an unknown step, node or column and for an invalid condition, RunFolderError for a folder without a
    run or without recorded responses, DataError for a damaged file.
    """
    import pyarrow as pa

    run = RunFolder.open(path)
    sampler, files = _files(run, node)
    chosen = max(files) if step is None else step
    if chosen not in files:
        what = f"{run.path} has no responses of `{sampler}` in step {chosen}"
        raise UsageError(what, where=f"--step {step}", hint=f"recorded: {step_ranges(sorted(files))}")
    table = _read(files[chosen])
    results = {
        column.name: (column.metadata or {}).get(TYPES, b"").decode("ascii", "replace")
        for column in table.schema
        if column.name not in _PARTS and not column.name.startswith(_DATA)
    }
    columns = _columns(table, results, str(files[chosen]))
    of_tokens = {name for name in results if pa.types.is_list(table.schema.field(name).type)}
    places = list(range(table.num_rows))
    if where is not None:
        tests = parse_condition(where, columns)
        used = {test.column for test in tests}
        rows = ({column: columns[column][place] for column in used} for place in places)
        places = [place for place, row in enumerate(rows) if all(test.holds(row) for test in tests)]
    matching = len(places)
    if sort is not None:
        places = _sorted(places, columns, sort)
    places = places[: ROWS if limit is None else limit]
    return RolloutRows(
        run=run.path,
        node=sampler,
        step=chosen,
        total=table.num_rows,
        matching=matching,
        columns=tuple(columns),
        results=tuple(name for name in results if name in columns and name not in of_tokens),
        token_results=tuple(name for name in results if name in columns and name in of_tokens),
        types=results,
        rows=tuple(_rows(table, columns, results, places, str(files[chosen]))),
    )


def _files(run: RunFolder, node: str | None) -> tuple[str, dict[int, Path]]:
    folders = {path.name: path for path in sorted((run.path / ROLLOUTS).glob("*")) if path.is_dir()}
    if (run.path / VALIDATION).is_dir():
        folders[VALIDATION] = run.path / VALIDATION
    files = {
        name: {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := ROLLOUT.fullmatch(path.name)) and match[2] == "parquet" and path.is_file()
        }
        for name, folder in folders.items()
    }
    files = {name: steps for name, steps in files.items() if steps}
    if not files:
        hint = "a run records its rollouts when its first step is done"
        raise RunFolderError("has no recorded responses", where=str(run.path), hint=hint)
    if node is None:
        return next(iter(files.items()))
    if node not in files:
        what = f"{run.path} has no responses of `{node}`"
        raise UsageError(what, where=f"--node {node}", hint=nearest(node, files))
    return node, files[node]


def step_ranges(steps: Sequence[int]) -> str:
    """Return ascending step numbers as text; three or more consecutive numbers become a range.

    At most twelve numbers and ranges are written; " …" stands for the rest.

    >>> step_ranges([0, 1, 2, 5, 8, 9])
    '0-2, 5, 8, 9'
    """
    parts, start = list[str](), 0
    for place, step in enumerate(steps):
        if place + 1 == len(steps) or steps[place + 1] != step + 1:
            run = steps[start : place + 1]
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
            start = place + 1
    return ", ".join(parts[:12]) + (" …" if len(parts) > 12 else "")


def _read(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
            if sum(group.total_byte_size for group in groups) > MOST_FILE_BYTES:
                raise DataError.unusable(path, f"holds more than {MOST_FILE_BYTES:,} bytes")
            table = file.read()
            table.validate(full=True)
    except (OSError, pa.ArrowException) as fault:
        raise DataError.corrupt(path, fault) from fault
    types = {"text": pa.types.is_string, "group": pa.types.is_integer, "sample": pa.types.is_integer}
    kinds = {"text": "text", "group": "whole numbers", "sample": "whole numbers"}
    for name, fits in types.items():
        if table.column_names.count(name) != 1:
            raise DataError.lacks_part(str(path), name, table.column_names)
        if not fits(table.schema.field(name).type):
            raise DataError.wrong_type(str(path), name, table.schema.field(name).type, kinds[name])
    if len(set(table.column_names)) < table.num_columns:
        raise DataError.unusable(path, "has two columns of one name")
    return table


def _lists(table: pa.Table, name: str, where: str) -> Any:
    import pyarrow as pa

    if name not in table.column_names:
        return None
    kind = table.schema.field(name).type
    if not (pa.types.is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))):
        raise DataError.wrong_type(where, name, kind, "a list of numbers in each row")
    return table.column(name).combine_chunks()


def _means(lists: Any) -> list[float | None]:
    import numpy as np

    counts = lists.value_lengths().fill_null(0).to_numpy()
    rows = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(rows, lists.flatten().to_numpy(zero_copy_only=False), minlength=len(counts))
    means = zip(sums.tolist(), counts.tolist(), strict=True)
    return [total / count if count else None for total, count in means]


def _columns(table: pa.Table, results: Mapping[str, str], where: str) -> dict[str, list[Scalar]]:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"prompt": table.column("group").to_pylist()}
    columns["sample"] = table.column("sample").to_pylist()
    logprobs, versions = _lists(table, SAMPLED, where), _lists(table, "versions", where)
    if logprobs is not None:
        columns["length"] = logprobs.value_lengths().fill_null(0).to_pylist()
    if "finished" in table.column_names and pa.types.is_boolean(table.schema.field("finished").type):
        columns["finished"] = table.column("finished").to_pylist()
    if logprobs is not None:
        columns["logprob"] = _means(logprobs)
    if versions is not None:
        columns["version"] = [row[-1] if row else None for row in versions.to_pylist()]
    for name in results:
        kind = table.schema.field(name).type
        if _is_scalar(kind):
            columns[name] = table.column(name).to_pylist()
        elif pa.types.is_list(kind):
            columns[name] = _means(_lists(table, name, where))
    for name in table.column_names:
        if name.startswith(_DATA) and _is_scalar(table.schema.field(name).type):
            short = name.removeprefix(_DATA)
            columns[f"data.{short}" if short in columns else short] = table.column(name).to_pylist()
    return dict(list(columns.items())[:MOST_NAMES])


def _is_scalar(kind: Any) -> bool:
    import pyarrow as pa

    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number or pa.types.is_string(kind))


def _sorted(places: Sequence[int], columns: Mapping[str, Sequence[Scalar]], sort: str) -> list[int]:
    name = sort.removeprefix("-") if sort not in columns else sort
    if name not in columns:
        raise unknown_column(name, columns, f"--sort {sort}")
    values = columns[name]

    def lacks(place: int) -> bool:
        value = values[place]
        return value is None or (isinstance(value, float) and math.isnan(value))

    present = sorted((place for place in places if not lacks(place)), key=values.__getitem__, reverse=name != sort)  # type: ignore[arg-type]
    return [*present, *filter(lacks, places)]


def _rows(
    table: pa.Table,
    columns: Mapping[str, Sequence[Scalar]],
    results: Mapping[str, str],
    places: Sequence[int],
    where: str,
) -> Iterator[RolloutRow]:
    import pyarrow as pa

    part = table.take(pa.array(places, pa.int64()))
    texts, prompts = part.column("text").to_pylist(), [None] * len(places)
    if f"{_DATA}prompt" in part.column_names:
        prompts = part.column(f"{_DATA}prompt").to_pylist()
    lists = [name for name in results if name in columns and pa.types.is_list(part.schema.field(name).type)]
    numbers = {name: _lists(part, name, where) for name in ("tokens", SAMPLED, *lists)}
    values_of = {name: column.to_pylist() for name, column in numbers.items() if column is not None}
    for row, place in enumerate(places):
        yield RolloutRow(
            values={name: values[place] for name, values in columns.items()},
            prompt=tuple(_messages(prompts[row])),
            response=texts[row] or "",
            tokens=tuple(int(token or 0) for token in values_of.get("tokens", {row: None})[row] or ()),
            logprobs=_floats(values_of.get(SAMPLED, {row: None})[row]),
            token_values={name: _floats(values_of[name][row]) for name in lists if values_of[name][row] is not None},
        )


def _floats(numbers: Sequence[float | None] | None) -> tuple[float, ...]:
    return tuple(math.nan if number is None else float(number) for number in numbers or ())


def _messages(prompt: Any) -> Iterator[tuple[str, str]]:
    if isinstance(prompt, list):
        for message in prompt:
            if isinstance(message, dict):
                yield str(message.get("role") or ""), str(message.get("content") or "")
            else:
                yield "", "" if message is None else str(message)
    elif prompt is not None:
        yield "", str(prompt)
