"""Generate many samples in one batch on a transformers model, with random numbers keyed to each sample.

The next token is the argmax of logits plus Gumbel noise, which is keyed by (run seed, step, node, prompt, sample,
position): responses do not depend on how the batch is split, except for the model's rounding. Equal contexts are
computed once; rows that end leave the batch. Weights may be replaced between two tokens: the cache is then computed
again, so each token is of one version of the weights.

Source: Gumbel-max trick, Maddison, Tarlow and Minka 2014, arXiv 1411.0030, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowgraph.engines.forward_pass.truncation import truncated
from flowgraph.engines.forward_pass.turns import PassTurn
from flowgraph.errors import LawError
from flowgraph.language.handle import WHOLE_VOCABULARY, Completion, SampleRequest

if TYPE_CHECKING:
    from torch import Tensor


LOOK_TOKENS = 8  # between two looks for a text that ends a response


@dataclass
class _SampleState:
    request: SampleRequest
    ends: frozenset[int]
    noise: Any  # numpy Generator, read in order of position
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # (first token, version)
    finished: bool = False
    seen: Tensor | None = None  # [V] bool: the tokens of context and response, if a penalty is on them


def decode(
    model: Any,
    requests: Sequence[SampleRequest],
    ends: frozenset[int],
    version: int,
    stopped: Callable[[SampleRequest, Sequence[int]], bool] | None = None,
    turn: PassTurn | None = None,
) -> list[Completion]:
    """Generate one sample for each request, all in one batch, and return the completions in the order of the requests.

    A sample ends at an end token or after `max_tokens` tokens. `ends` are the token ids at which the model ends a
    response, and `version` is the version of the weights, which each completion records. If other threads may replace
    the weights, each pass runs in a `turn()`, which returns the version of that pass. `stopped(request, tokens)`
    returns whether `tokens` contain a text that ends the response; the sample then ends too. It is called after every 8
    tokens, for requests with such texts. The completion is not cut at the text. Raises LawError, which names the
    prompt, if the model's logits are NaN or infinite.
    """
    rows = [_SampleState(request, request.ends(ends), request.key.generator(*request.stream)) for request in requests]

    def goes_on(row: _SampleState) -> bool:
        if row.finished or len(row.tokens) >= row.request.max_tokens:
            return False
        if stopped is None or not row.request.stopping.texts or len(row.tokens) % LOOK_TOKENS:
            return True
        return not stopped(row.request, row.tokens)

    active, device = list(rows), next(model.parameters()).device
    opened = turn or (lambda: nullcontext(version))

    with torch.inference_mode():  # measured: a tenth less than no_grad
        with opened() as drawn_by:
            logits, cache, mask = _read_rows(model, active, device)
        while True:
            _choose(active, logits, drawn_by)
            keep = [i for i, row in enumerate(active) if goes_on(row)]
            if not keep:
                break
            if len(keep) < len(active):
                index = torch.tensor(keep, device=mask.device)
                cache.batch_select_indices(index)
                mask, active = mask[index], [active[i] for i in keep]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], 1)
            last = torch.tensor([[row.tokens[-1]] for row in active], device=mask.device)
            at = mask.sum(1, keepdim=True) - 1
            with opened() as newest:
                if newest != drawn_by:  # the cache is of weights that are gone
                    logits, cache, mask = _read_rows(model, active, device)
                else:
                    inputs = {"input_ids": last, "attention_mask": mask, "position_ids": at}
                    out = model(**inputs, past_key_values=cache, use_cache=True)
                    logits, cache = out.logits[:, -1], out.past_key_values
            drawn_by = newest
    return [Completion(tuple(r.tokens), tuple(r.logprobs), r.finished, tuple(r.spans)) for r in rows]


def _read_rows(model: Any, rows: Sequence[_SampleState], device: Any) -> tuple[Tensor, Any, Tensor]:
    """Return the logits [B, V] after all tokens of each row, the KV cache, and the mask [B, T] of the tokens in it."""
    contexts = [(*row.request.context, *row.tokens) for row in rows]
    out, mask, index = read_distinct(model, contexts, device, logits_to_keep=1)
    out.past_key_values.batch_select_indices(index)
    return out.logits[:, -1][index], out.past_key_values, mask[index]


def read_distinct(
    model: Any, contexts: Sequence[tuple[int, ...]], device: Any, **options: Any
) -> tuple[Any, Tensor, Tensor]:
    """Run the model once on the distinct contexts; return the model's output, the mask [G, P], and an index [B].

    There are G distinct contexts, in order of appearance; the longest has P tokens, and shorter ones are padded on the
    left. The index has the place of each of the B `contexts` among the distinct ones. A context without tokens is
    computed as one token of id 0. `options` are passed to the model.
    """
    row = {context: i for i, context in enumerate(dict.fromkeys(contexts))}
    ids, mask = pad_left([context or (0,) for context in row], device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **options)
    return out, mask, torch.tensor([row[context] for context in contexts], device=device)


def pad_left(contexts: Sequence[Sequence[int]], device: Any = None) -> tuple[Tensor, Tensor]:
    """Return lists of token ids padded on the left: (ids, mask), two int64 tensors [lists, longest] on `device`.

    Padding has id 0 and mask 0; tokens have mask 1. `device` None means the CPU.
    """
    width = max((len(context) for context in contexts), default=0)
    ids, mask = torch.zeros(len(contexts), width, dtype=torch.long), torch.zeros(len(contexts), width, dtype=torch.long)
    for i, context in enumerate(contexts):
        ids[i, width - len(context) :] = torch.as_tensor(context, dtype=torch.long)
        mask[i, width - len(context) :] = 1
    return ids.to(device), mask.to(device)


def _choose(rows: Sequence[_SampleState], logits: Tensor, version: int) -> None:
    """Append one token to each row: the keyed sample, or the argmax at temperature 0. `version` is that of the weights.

    Each row has its own stream of Gumbel noise. In float32, which takes a third of the time, the noise is at most 16.6:
    a token with p < 6e-8 is almost never sampled. Raises LawError for log-probs that are NaN or infinite.
    """
    heat = torch.tensor([row.request.temperature for row in rows], device=logits.device)[:, None]
    scaled = _penalized(rows, full_precision(logits)) / torch.where(heat > 0, heat, torch.ones_like(heat))
    for truncation in {row.request.truncation for row in rows} - {WHOLE_VOCABULARY}:
        of_rows = [i for i, row in enumerate(rows) if row.request.truncation == truncation]
        scaled[of_rows] = truncated(scaled[of_rows], truncation)
    noise, warm = torch.zeros_like(scaled), [i for i, row in enumerate(rows) if row.request.temperature > 0]
    if warm:
        uniform = np.empty((len(warm), scaled.shape[1]), dtype=np.float32)
        for row, i in zip(uniform, warm, strict=True):
            rows[i].noise.random(out=row, dtype=np.float32)
        noise[warm] = -torch.log(-torch.log(torch.from_numpy(uniform))).to(noise)
    chosen = (scaled + noise).argmax(1)
    logprobs = scaled.gather(1, chosen[:, None])[:, 0] - scaled.logsumexp(1)
    for state, token, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
        if not math.isfinite(logprob):
            at = f"token {len(state.tokens)} of a response to prompt {state.request.prompt}"
            hint = "its weights are damaged, or too large for the precision it computes in"
            raise LawError(f"the model gives no probabilities at {at}: its logits are NaN or infinite", hint=hint)
        if not state.spans or state.spans[-1][1] != version:
            state.spans.append((len(state.tokens), version))
        state.tokens.append(token)
        state.logprobs.append(logprob)
        state.finished = token in state.ends


def _penalized(rows: Sequence[_SampleState], logits: Tensor) -> Tensor:
    """Return logits [B, V] after each row's repetition penalty.

    Source: Keskar et al. 2019 (CTRL), arXiv 1909.05858, section 4.1. Deviation: it multiplies negative logits, so that
    a penalty above 1 makes every such token less likely, as in transformers and vLLM.
    """
    penalties = {i: row.request.repetition_penalty for i, row in enumerate(rows) if row.request.repetition_penalty != 1}
    logits = logits.clone() if penalties else logits
    for i, penalty in penalties.items():
        row = rows[i]
        if row.seen is None:
            row.seen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
            row.seen[list(row.request.context)] = True
        row.seen[row.tokens[-1:]] = True
        of_row = logits[i]
        logits[i] = torch.where(row.seen, torch.where(of_row > 0, of_row / penalty, of_row * penalty), of_row)
    return logits


def computes_on(model: Any, device: torch.device) -> None:
    """Record `device` in a model as the device on which it computes, for `device_of`.

    The weights of the model may be in the memory of another device.
    """
    model.flowgraph_device = device


def device_of(model: Any) -> torch.device:
    """Return the device on which a model computes, and where its inputs must be.

    This is the device that `computes_on` has recorded, or else the device of the model's first parameter.
    """
    device: torch.device = getattr(model, "flowgraph_device", None) or next(model.parameters()).device
    return device


def full_precision(logits: Tensor) -> Tensor:
    """Return logits converted to float32, in which log-probs are fine enough to compare; float64 is unchanged."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
