"""Whether a model can read packed tokens: it is tried once, on a few, against the padded pass, and remembered."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import torch

from flowgraph.engines.forward_pass.attention import Way, asked_windows, switch, switchable
from flowgraph.engines.forward_pass.packed import Packing, run_packed
from flowgraph.engines.forward_pass.packing import pack
from flowgraph.engines.forward_pass.padded import read_padded
from flowgraph.language.handle import ResponseRows, TokenStats
from flowgraph.models.heads import head_names, head_of

if TYPE_CHECKING:
    from torch import Tensor

LIMIT, HALF_LIMIT = 1e-4, 0.03
"""How far the two passes may be apart, as a part of the largest number: in float32, and in half precision."""
CONTEXTS, LENGTHS, GROUPS = ((3, 1, 4), (1, 5, 2, 6, 5)), (2, 1, 4, 3), (0, 0, 1, 1)
"""The rows that are tried: groups share a context, and lengths differ."""


@dataclass(frozen=True)
class PackingChoice:
    """How a model is read, None for padded rows; and in that case why."""

    packing: Packing | None
    note: str = ""


CHOSEN: WeakKeyDictionary[Any, PackingChoice] = WeakKeyDictionary()


def choose(model: Any, *, half: bool = False) -> Packing | None:
    """Give how a model reads packed tokens, or None where it must read padded rows; `padded_because` says why.

    The first call runs the model a few times on ten tokens or so, without gradients; ranks that share a sharded model
    all make it. The model is left as it was. `half` says that it will compute in bfloat16, whatever its weights are.
    """
    return chosen(model, half=half).packing


def padded_because(model: Any) -> str:
    """Say in a sentence why a model reads padded rows; "" where it reads packed tokens."""
    return chosen(model).note


def chosen(model: Any, *, half: bool = False) -> PackingChoice:
    """Give what was chosen for a model, which is tried the first time."""
    if model not in CHOSEN:
        place = next(model.parameters()).device.type
        with torch.autocast(place, torch.bfloat16, enabled=half and place == "cuda"):
            CHOSEN[model] = _tried(model)
    return CHOSEN[model]


def _tried(model: Any) -> PackingChoice:

    name = type(model).__name__
    if head_of(model) == "score":
        return PackingChoice(None, f"{name} gives a number for a whole text: texts are read padded")
    if told := switchable(model):
        return PackingChoice(None, f"{name} reads padded rows: {told}")
    with torch.no_grad():
        try:
            wanted = _observed(model, lambda: read_padded(model, _rows(model), _wanted(model), head_of(model)))
        except Exception as error:  # noqa: BLE001 - whoever reads rows with it then meets the error itself
            return PackingChoice(None, f"{name} does not even read padded rows ({type(error).__name__}: {error})")
        why = ""
        for each in _ways(model):
            why = _differs(model, each, wanted)
            if not why:
                return PackingChoice(each)
    return PackingChoice(None, f"{name} reads padded rows: {why}")


def _differs(model: Any, packing: Packing, wanted: list[Tensor]) -> str:
    """Say how a model's answer of packed tokens differs from the one wanted; "" where it does not."""
    windows = list[set[int | None]]()

    def read() -> TokenStats:
        with asked_windows() as asked:
            stats, attending = run_packed(model, _rows(model), _wanted(model), packing, masked=False)
        windows.extend((asked, attending.windows))
        return stats

    try:
        told = _observed(model, read)
    except Exception as error:  # noqa: BLE001 - a model may refuse packed tokens in any way, and is then read padded
        return f"packed tokens are refused ({type(error).__name__}: {error})"
    finally:
        switch(model, "sdpa")
    if missed := windows[0] - {None} - windows[1]:
        return f"its layers attend to spans of {', '.join(map(str, missed))} tokens, and do not say so to attention"
    full = model.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cuda")
    limit = LIMIT if told[0].dtype.itemsize >= 4 and full else HALF_LIMIT
    far = max(_apart(one, other) for one, other in zip(told, wanted, strict=True))
    return "" if far <= limit else f"packed tokens have another answer, {far:.2g} away"


def _apart(one: Tensor, other: Tensor) -> float:
    """Give the largest difference, as a part of the largest number or of 1; infinite where shapes differ, or NaN."""
    if one.shape != other.shape:
        return float("inf")
    far = float((one - other).abs().max() / other.abs().max().clamp(min=1.0))
    return far if math.isfinite(far) else float("inf")


def _ways(model: Any) -> Iterator[Packing]:
    """Give the ways to try, the fastest first."""
    ways: list[Way] = ["segments"]
    if next(model.parameters()).device.type == "cuda":
        half = torch.is_autocast_enabled("cuda") or model.dtype in (torch.float16, torch.bfloat16)
        there = find_spec("torch.nn.attention.varlen") is not None
        ways = ["varlen", "flex", "mask"] if half and there else ["flex", "mask"]
    heads = (True, False) if head_of(model) == "tokens" else (False,)
    yield from (Packing(way, chunked) for chunked in heads for way in ways)


def _wanted(model: Any) -> tuple[str, ...]:
    return ("values",) if head_of(model) == "values" else ("logprobs", "entropy", "square_probs")


def _rows(model: Any) -> ResponseRows:
    """Make the rows that are tried, of ids that every vocabulary has."""
    vocabulary = model.config.get_text_config().vocab_size
    contexts = pa.array([[token % vocabulary for token in CONTEXTS[group]] for group in GROUPS], pa.list_(pa.int64()))
    tokens = torch.arange(len(LENGTHS) * max(LENGTHS)).reshape(len(LENGTHS), -1) % vocabulary
    return ResponseRows(contexts, tokens, torch.tensor(LENGTHS), 0.7)


def _observed(model: Any, read: Callable[[], TokenStats]) -> list[Tensor]:
    """Give the statistics, and what the head read for each response token: a head of zeros tells nothing."""
    with _head_inputs(model) as inputs:
        stats = read()
    given = [getattr(stats, field.name) for field in fields(stats)]
    return [*(each for each in given if each is not None), _of_tokens(inputs[-1], _rows(model))]


def _of_tokens(hidden: Tensor, rows: ResponseRows) -> Tensor:
    """Pick the states [n, size] of response tokens, from padded rows [B, T, size] or packed tokens [1, N, size]."""
    if len(hidden) == 1:
        return hidden[0, torch.from_numpy(pack(rows).reads).to(hidden.device)]
    return torch.cat([row[:length] for row, length in zip(hidden, LENGTHS, strict=True)])


@contextlib.contextmanager
def _head_inputs(model: Any) -> Generator[list[Tensor]]:
    """Collect what the model's head reads, call by call."""
    inputs = list["Tensor"]()
    hook = _head(model).register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def _head(model: Any) -> Any:
    """Give the module that makes logits, or a number at each token."""
    if head_of(model) == "tokens":
        return model.get_output_embeddings()
    return model.get_submodule(min(head_names(model)).rpartition(".")[0])
