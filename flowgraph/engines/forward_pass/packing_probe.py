"""Whether a model can read packed tokens: one probe on a few tokens compares it with the padded pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import torch

from flowgraph.engines.forward_pass.attention import Way, requested_windows, switch, switchable
from flowgraph.engines.forward_pass.packed import Packing, read_packed
from flowgraph.engines.forward_pass.packing import pack
from flowgraph.engines.forward_pass.padded import read_padded
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_names, head_of

if TYPE_CHECKING:
    from torch import Tensor

LIMIT, HALF_LIMIT = 1e-4, 0.03
"""The largest difference of the two passes relative to the largest number, in float32 and in half precision."""
CONTEXTS, LENGTHS, GROUPS = ((3, 1, 4), (1, 5, 2, 6, 5)), (2, 1, 4, 3), (0, 0, 1, 1)
"""The rows of the probe: groups share a context, and lengths differ."""


@dataclass(frozen=True)
class PackingChoice:
    """How a model reads packed tokens; None, with the reason, if it reads padded rows."""

    packing: Packing | None
    note: str = ""


CHOSEN: WeakKeyDictionary[Any, PackingChoice] = WeakKeyDictionary()


def choose(model: Any, *, half: bool = False) -> Packing | None:
    """Return how a model reads packed tokens, or None if it must read padded rows; `padded_because` says why.

    The first call runs the model a few times on about ten tokens, without gradients; ranks that share a sharded model
    must all make it. The model is unchanged. `half` says that it will compute in bfloat16, whatever its weights are.
    """
    if model not in CHOSEN:
        device = next(model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=half and device == "cuda"):
            CHOSEN[model] = _probe(model)
    return CHOSEN[model].packing


def padded_because(model: Any) -> str:
    """Return in a sentence why a model reads padded rows; "" if it reads packed tokens."""
    choose(model)
    return CHOSEN[model].note


def _probe(model: Any) -> PackingChoice:
    name = type(model).__name__
    if head_of(model) == "score":
        return PackingChoice(None, f"{name} gives a number for a whole text: texts are read padded")
    if why := switchable(model):
        return PackingChoice(None, f"{name} reads padded rows: {why}")
    with torch.no_grad():
        try:
            expected = _observed(model, lambda: read_padded(model, _rows(model), _statistics(model), head_of(model)))
        except Exception as error:  # noqa: BLE001 - reading rows with this model raises the same error
            return PackingChoice(None, f"{name} does not even read padded rows ({type(error).__name__}: {error})")
        for packing in _candidates(model):
            why = _difference(model, packing, expected)
            if not why:
                return PackingChoice(packing)
    return PackingChoice(None, f"{name} reads padded rows: {why}")


def _difference(model: Any, packing: Packing, expected: list[Tensor]) -> str:
    """Return how the results on packed tokens differ from the expected ones; "" if they do not."""
    windows = list[set[int | None]]()

    def read() -> TokenStats:
        with requested_windows() as requested:
            stats, attention = read_packed(model, _rows(model), _statistics(model), packing, masked=False)
        windows.extend((requested, attention.windows))
        return stats

    try:
        results = _observed(model, read)
    except Exception as error:  # noqa: BLE001 - a model may fail on packed tokens in any way, and then reads padded rows
        return f"packed tokens are refused ({type(error).__name__}: {error})"
    finally:
        switch(model, "sdpa")
    if missed := windows[0] - {None} - windows[1]:
        return f"its layers attend to spans of {', '.join(map(str, missed))} tokens, and do not say so to attention"
    full = model.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cuda")
    limit = LIMIT if results[0].dtype.itemsize >= 4 and full else HALF_LIMIT
    distance = max(_distance(*pair) for pair in zip(results, expected, strict=True))
    return "" if distance <= limit else f"packed tokens have another answer, {distance:.2g} away"


def _distance(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest number or 1; infinite for other shapes or NaN."""
    if result.shape != expected.shape:
        return float("inf")
    distance = float((result - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    return distance if math.isfinite(distance) else float("inf")


def _candidates(model: Any) -> Iterator[Packing]:
    """Yield what to try, the fastest first."""
    ways: list[Way] = ["segments"]
    if next(model.parameters()).device.type == "cuda":
        half = torch.is_autocast_enabled("cuda") or model.dtype in (torch.float16, torch.bfloat16)
        has_varlen = find_spec("torch.nn.attention.varlen") is not None
        ways = ["varlen", "flex", "mask"] if half and has_varlen else ["flex", "mask"]
    heads = (True, False) if head_of(model) == "tokens" else (False,)
    yield from (Packing(way, chunked) for chunked in heads for way in ways)


def _statistics(model: Any) -> tuple[str, ...]:
    return ("values",) if head_of(model) == "values" else ("logprobs", "entropy", "square_probs")


def _rows(model: Any) -> ResponseRows:
    """Return the rows of the probe, with ids that every vocabulary has."""
    vocabulary = model.config.get_text_config().vocab_size
    contexts = pa.array([[token % vocabulary for token in CONTEXTS[group]] for group in GROUPS], pa.list_(pa.int64()))
    tokens = torch.arange(len(LENGTHS) * max(LENGTHS)).reshape(len(LENGTHS), -1) % vocabulary
    return ResponseRows(contexts, tokens, torch.tensor(LENGTHS), 0.7)


def _observed(model: Any, read: Callable[[], TokenStats]) -> list[Tensor]:
    """Return the statistics, and what the head read for each response token, since a head of zeros shows nothing.

    The head reads [B, T, size] of padded rows, and [1, N, size] of packed tokens.
    """
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
