"""Decide whether a model can run on packed tokens: a probe on a few tokens compares the result with the padded pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import torch

from flowgraph.engines.forward_pass.attention import Way, attention_obstacle, requested_windows, set_attention
from flowgraph.engines.forward_pass.packed import Packing, read_packed
from flowgraph.engines.forward_pass.packing import pack
from flowgraph.engines.forward_pass.padded import read_padded
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_names, head_of

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.values import Head

LIMIT, HALF_LIMIT = 1e-4, 0.03
"""The largest difference of the two passes relative to the largest number, in float32 and in half precision."""
CONTEXTS, LENGTHS, GROUPS = ((3, 1, 4), (1, 5, 2, 6, 5)), (2, 1, 4, 3), (0, 0, 1, 1)
"""The rows of the probe: groups share a context, and lengths differ."""
CHOSEN: WeakKeyDictionary[Any, tuple[Packing | None, str]] = WeakKeyDictionary()
"""How each model runs on packed tokens; None, with the reason, if it needs padded rows."""
GIVES: Mapping[Head, tuple[str, ...]] = {
    "tokens": ("logprobs", "entropy", "square_probs"),
    "values": ("values",),
    "score": ("score",),
}
"""The statistics that a model with each kind of head can compute."""


def choose_packing(model: Any, *, half: bool = False) -> Packing | None:
    """Return how a model runs on packed tokens, or None if it needs padded batches (`padding_reason` says why).

    The first call for a model runs it several times on a few tokens, without gradients; all ranks of a sharded model
    must make this call. Later calls return the first result. `half` means that passes on a GPU will compute in
    bfloat16, whatever the dtype of the weights; it matters only in the first call.
    """
    if model not in CHOSEN:
        device = next(model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=half and device == "cuda"):
            CHOSEN[model] = _probe(model)
    return CHOSEN[model][0]


def padding_reason(model: Any) -> str:
    """Return a sentence that says why a model needs padded batches, or "" if it can run on packed tokens.

    The first call for a model runs it on a few tokens, as `choose_packing` does; all ranks of a sharded model must make
    this call.
    """
    choose_packing(model)
    return CHOSEN[model][1]


def _probe(model: Any) -> tuple[Packing | None, str]:
    name, head, names = type(model).__name__, head_of(model), GIVES[head_of(model)]
    if head == "score":
        return None, f"{name} gives one number for a whole text, so texts are padded"
    if why := attention_obstacle(model):
        return None, f"{name} uses padded rows: {why}"
    ways: list[Way] = ["segments"]  # the fastest first
    if next(model.parameters()).device.type == "cuda":
        half = torch.is_autocast_enabled("cuda") or model.dtype in (torch.float16, torch.bfloat16)
        has_varlen = find_spec("torch.nn.attention.varlen") is not None
        ways = ["varlen", "flex", "mask"] if half and has_varlen else ["flex", "mask"]
    with torch.no_grad():
        try:
            expected = _observed(model, lambda: read_padded(model, _rows(model), names, head))
        except Exception as error:  # noqa: BLE001 - reading rows with this model raises the same error
            return None, f"{name} does not even read padded rows ({type(error).__name__}: {error})"
        for chunked in (True, False) if head == "tokens" else (False,):
            for way in ways:
                packing = Packing(way, chunked)
                why = _difference(model, packing, expected)
                if not why:
                    return packing, ""
    return None, f"{name} uses padded rows: {why}"


def _difference(model: Any, packing: Packing, expected: list[Tensor]) -> str:
    windows = list[set[int | None]]()

    def read() -> TokenStats:
        with requested_windows() as requested:
            stats, attention = read_packed(model, _rows(model), GIVES[head_of(model)], packing, masked=False)
        windows.extend((requested, attention.windows))
        return stats

    try:
        results = _observed(model, read)
    except Exception as error:  # noqa: BLE001 - a model may fail on packed tokens in any way, and then reads padded rows
        return f"packed tokens are refused ({type(error).__name__}: {error})"
    finally:
        set_attention(model, "sdpa")
    if missed := windows[0] - {None} - windows[1]:
        return f"its layers attend to spans of {', '.join(map(str, missed))} tokens, but do not pass them to attention"
    full = model.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cuda")
    limit = LIMIT if results[0].dtype.itemsize >= 4 and full else HALF_LIMIT
    distance = 0.0
    for result, reference in zip(results, expected, strict=True):  # relative to the largest number, or to 1
        same_shape = result.shape == reference.shape
        off = float((result - reference).abs().max() / reference.abs().max().clamp(min=1.0)) if same_shape else math.inf
        distance = max(distance, off if math.isfinite(off) else math.inf)
    return "" if distance <= limit else f"packed tokens change the result by {distance:.2g}"


def _rows(model: Any) -> ResponseRows:
    vocabulary = model.config.get_text_config().vocab_size
    contexts = pa.array([[token % vocabulary for token in CONTEXTS[group]] for group in GROUPS], pa.list_(pa.int64()))
    tokens = torch.arange(len(LENGTHS) * max(LENGTHS)).reshape(len(LENGTHS), -1) % vocabulary
    return ResponseRows(contexts, tokens, torch.tensor(LENGTHS), 0.7)


def _observed(model: Any, read: Callable[[], TokenStats]) -> list[Tensor]:
    """Return the statistics, and the head's inputs for response tokens: a head of zeros hides differences."""
    inputs = list["Tensor"]()
    if head_of(model) == "tokens":
        head = model.get_output_embeddings()
    else:
        head = model.get_submodule(min(head_names(model)).rpartition(".")[0])
    hook = head.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        stats = read()
    finally:
        hook.remove()
    hidden = inputs[-1]
    if len(hidden) == 1:
        states = hidden[0, torch.from_numpy(pack(_rows(model)).reads).to(hidden.device)]
    else:
        states = torch.cat([row[:length] for row, length in zip(hidden, LENGTHS, strict=True)])
    return [*(value for value in vars(stats).values() if value is not None), states]
