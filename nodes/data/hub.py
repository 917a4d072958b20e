"""Data sets of the Hugging Face hub. The package `datasets` is imported only when one is loaded."""

from __future__ import annotations

import importlib
from typing import Any

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.checks import check_rows

HELD_OUT_SPLITS = ("test", "validation")


def hub_rows(spec: str) -> tuple[Table, Table | None]:
    """Return the train and held-out rows of `hf:ID` or `hf:ID:CONFIG`, which must have the schema of `rows`.

    The split `test` is held out, else `validation`, else nothing. Raises DataError without the package or the network,
    for a data set without a split `train`, and for rows of another schema.
    """
    splits = _splits(spec)
    if "train" not in splits:
        raise DataError.unusable(spec, f"has no split `train`, only {', '.join(splits) or 'none'}")
    held_out = next((name for name in HELD_OUT_SPLITS if name in splits), None)
    return _table(spec, splits, "train"), _table(spec, splits, held_out) if held_out else None


def _splits(spec: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as fault:
        raise DataError.lacks_package(spec, "datasets") from fault
    name, _, config = spec.removeprefix("hf:").partition(":")
    try:
        return datasets.load_dataset(name, config or None)
    except Exception as fault:  # the package passes on any exception of its network and file layers
        raise DataError.failed(spec, "cannot be fetched", fault) from fault


def _table(spec: str, splits: Any, split: str) -> Table:
    table = splits[split].with_format("arrow")[:].replace_schema_metadata(None)
    where = f"{spec} {split}"
    check_rows(table, file=where, where=lambda index: f"{where} row {index} (from 0)")
    return table
