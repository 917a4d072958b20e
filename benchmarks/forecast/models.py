"""Sizes of models against published ones: counts of parameters, and what is cached for a token.

Counted twice: from the columns of a row, and from the shipped table by the row's name. These are exact or wrong, so
rows are grouped by that. The null model is that of Kaplan et al. 2020, arXiv 2001.08361, section 2.1: 12 · layers ·
hidden², and the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.forecast.cells import AMOUNT, ANY_OR_EMPTY, columns
from benchmarks.forecast.report import Case, Row, Table, View
from flowgraph.errors import ModelError
from flowgraph.models.sizes import ModelShape, shape_of
from flowgraph.models.table import full_name, listed

CACHE_BYTES = 2
COLUMNS = frozenset({"model", "hidden", "layers", "q_heads", "kv_heads", "head_dim", "ffn", "vocab", "params_reported"})


def config_of(row: Row) -> dict[str, Any]:
    """Write a row as config.json would have it; of the families only Qwen3's normalise queries and keys."""
    normal, experts = row["model"].startswith("Qwen3"), _whole(row, "experts")
    config = {
        "model_type": "qwen3" if normal else "qwen2" if _whole(row, "qkv_bias") else "llama",
        "hidden_size": _whole(row, "hidden"),
        "num_hidden_layers": _whole(row, "layers"),
        "num_attention_heads": _whole(row, "q_heads"),
        "num_key_value_heads": _whole(row, "kv_heads"),
        "head_dim": _whole(row, "head_dim"),
        "intermediate_size": _whole(row, "ffn"),
        "vocab_size": _whole(row, "vocab"),
        "tie_word_embeddings": bool(_whole(row, "tied_embeddings")),
    }
    if not experts:
        return config
    width = _whole(row, "moe_ffn")
    routed = {"num_experts": experts, "num_experts_per_tok": _whole(row, "experts_per_tok")}
    if normal:
        return {**config, **routed, "model_type": "qwen3_moe", "moe_intermediate_size": width}
    return {**config, **routed, "model_type": "mixtral", "intermediate_size": width or config["intermediate_size"]}


def _whole(row: Row, column: str) -> int:
    return int(float(row.get(column) or 0))


def of_columns(row: Row) -> ModelShape | None:
    """Count a row's model from its columns; None if one that is needed is empty."""
    try:
        return shape_of(config_of(row), row["model"])
    except ModelError:
        return None


def of_table(row: Row) -> ModelShape | None:
    """Look a row's model up by its name, or by the first of two; None if the table has none of them."""
    for name in row["model"].replace("(", "/").replace(")", "").split("/"):
        found = full_name(name.strip())
        entry = listed(found) if found is not None else None
        if entry is not None:
            return shape_of(entry.config, entry.name)
    return None


def null_parameters(row: Row) -> float:
    """Give 12 · layers · hidden², and the embedding."""
    hidden = _whole(row, "hidden")
    return 12 * _whole(row, "layers") * hidden**2 + _whole(row, "vocab") * hidden


def null_cache_bytes(row: Row) -> float:
    """Give what would be cached if every head had a key and a value of its own, hidden / heads wide."""
    return 2 * CACHE_BYTES * _whole(row, "layers") * _whole(row, "hidden")


def cases(
    column: str, shape: Callable[[Row], ModelShape | None], value: Callable[[ModelShape], float],
    null: Callable[[Row], float],
) -> Callable[[Sequence[Row]], Iterable[Case]]:  # fmt: skip
    """Hold one number of each row's model against a column of the file."""

    def made(rows: Sequence[Row]) -> Iterable[Case]:
        for row in rows:
            found, measured = shape(row), float(row[column] or 0)
            forecast = value(found) if found is not None else None
            group = "exact" if forecast == measured else "not exact"
            yield Case(row["model"], measured, forecast, null(row), group, "" if found else "a size is not known")

    return made


def cache_bytes(shape: ModelShape) -> float:
    """Give the bytes cached of one token, in bfloat16."""
    return CACHE_BYTES * shape.cache_numbers(1)


VIEWS = (
    View(
        "parameters, from the row's columns",
        "parameters",
        cases("params_reported", of_columns, lambda shape: shape.parameters, null_parameters),
    ),
    View(
        "parameters, from the shipped table",
        "parameters",
        cases("params_reported", of_table, lambda shape: shape.parameters, null_parameters),
    ),
    View(
        "active parameters, from the row's columns",
        "parameters",
        cases("active_params_formula", of_columns, lambda shape: shape.active, null_parameters),
    ),
    View(
        "cache, from the row's columns",
        "bytes per token",
        cases("kv_bytes_per_token_bf16", of_columns, cache_bytes, null_cache_bytes),
    ),
    View(
        "cache, from the shipped table",
        "bytes per token",
        cases("kv_bytes_per_token_bf16", of_table, cache_bytes, null_cache_bytes),
    ),
)
SIZES = ("hidden", "layers", "q_heads", "kv_heads", "head_dim", "ffn", "vocab", "tied_embeddings", "qkv_bias")
EXPERTS = ("experts", "experts_per_tok", "moe_ffn", "active_params_formula", "kv_bytes_per_token_bf16")
NUMBERS = columns(ANY_OR_EMPTY, *SIZES, *EXPERTS) | columns(AMOUNT, "params_reported")
TABLES = (Table("sizes of models", COLUMNS, VIEWS, NUMBERS),)
