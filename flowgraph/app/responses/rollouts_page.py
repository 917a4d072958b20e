"""The page of recorded responses: what colours their tokens, and how much of each is on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.app.request import Say
from flowgraph.app.responses.rollout_rows import SAMPLED, RolloutRow, RolloutRows
from flowgraph.app.responses.token_pieces import Decode, decoder_of, pieces
from flowgraph.diagrams.write.responses_page import (
    MAX_TOKENS_A_PAGE,
    MAX_TOKENS_A_RESPONSE,
    ResponsesPage,
    ShownResponse,
    TokenScale,
    responses_html,
)
from flowgraph.runtime.record.run_folder import RunFolder

PAGE_ROWS = 50  # on a page, where no number is given
_FIRST = ("advantage", "log-prob ratio", "entropy", "surprise")  # in this order, then values of other types


def rollouts_page(result: RolloutRows, cache: Path | None = None, say: Say = lambda line: None) -> str:
    """Return recorded responses as one HTML page, on which the reader chooses the values that colour the tokens.

    The choices are the scales of `token_scales`. `cache` is the folder of models, for the tokenizer, None for the
    default one; `say` receives why tokens have no text. The first 2,000 tokens of a response are shown, and no further
    responses have tokens once 100,000 are on the page. Raises RunFolderError if the run's folder cannot be read.
    """
    run = RunFolder.open(result.run)
    decode = decoder_of(run, result.node, cache_folder(cache), say)
    scales = token_scales(result)
    responses, room = list[ShownResponse](), MAX_TOKENS_A_PAGE
    for row in result.rows:
        response = _shown(row, result, scales, decode if room > 0 else None)
        room -= len(response.tokens)
        responses.append(response)
    run_facts = run.facts()
    facts = [("step", str(result.step)), ("responses", f"{result.total:,}")]
    for name in result.results:
        numbers = [float(value) for row in result.rows if isinstance(value := row.values[name], int | float)]
        if numbers:
            facts.append((f"mean {name}", f"{sum(numbers) / len(numbers):.4g}"))
    about = f"{len(result.rows)} of {result.matching:,} responses"
    about += "" if result.matching == result.total else f" that match, of {result.total:,} in all"
    return responses_html(
        ResponsesPage(
            title=f"{run_facts['flow']} · {result.run.name}",
            about=f"{about}, sampled by {result.node} in step {result.step}.",
            facts=tuple(facts),
            scales=tuple(scale for scale, _, _ in scales),
            responses=tuple(responses),
        )
    )


Scale = tuple[TokenScale, str, str]
"""A scale, the column that it shows, and its kind."""


def token_scales(result: RolloutRows) -> list[Scale]:
    """Return the scales that can colour tokens, each with its column and its kind, most important first.

    The order is: advantages, the last computed first; log-prob ratios (nats) of another model to the one that sampled;
    entropies (nats); the surprise -log p (nats), which is always there; and other values of tokens.
    """
    scales = list[Scale]()
    for name in (*result.results, *result.token_results):
        types = result.types[name].split()
        of_tokens = any(name in row.token_values for row in result.rows)
        if "Advantages" in types:
            scales.append((TokenScale(name=f"advantage: {name}", signed=True), name, "advantage"))
        elif of_tokens and "LogProbs" in types:
            ratio = TokenScale(name=f"log-prob ratio: {name} to sampled", signed=True, unit="nats")
            scales.append((ratio, name, "log-prob ratio"))
        elif of_tokens and "Entropy" in types:
            scales.append((TokenScale(name=f"entropy: {name}", signed=False, unit="nats"), name, "entropy"))
        elif of_tokens:
            scales.append((TokenScale(name=name, signed=True), name, name))
    scales.append((TokenScale(name="surprise: -log p when sampled", signed=False, unit="nats"), SAMPLED, "surprise"))
    # Of several advantages the last one is first: the others lead to it.
    scales = [*(scale for scale in reversed(scales) if scale[2] == _FIRST[0]), *scales]
    ranked = sorted(scales, key=lambda scale: _FIRST.index(scale[2]) if scale[2] in _FIRST else len(_FIRST))
    return list(dict.fromkeys(ranked))


def _shown(row: RolloutRow, result: RolloutRows, scales: Sequence[Scale], decode: Decode | None) -> ShownResponse:
    names = [name for name in row.values if name not in result.results]
    tokens = () if decode is None else tuple(pieces(row.tokens[:MAX_TOKENS_A_RESPONSE], decode))
    values = list[Sequence[float]]()  # of each scale: a number for each token, NaN where there is none
    for _, name, kind in scales:
        if kind == "surprise":
            values.append([-logprob for logprob in row.logprobs])
        elif name not in row.token_values:
            value = row.values[name]
            number = float(value) if kind == "advantage" and isinstance(value, int | float) else math.nan
            values.append([number] * len(row.tokens))
        elif kind == "log-prob ratio":
            values.append([new - old for new, old in zip(row.token_values[name], row.logprobs, strict=False)])
        else:
            values.append(row.token_values[name])
    return ShownResponse(
        title=f"prompt {row.values['prompt']}, sample {row.values['sample']}",
        prompt=row.prompt,
        response=row.response,
        results=tuple((name, row.values[name]) for name in result.results),
        facts=tuple((name, row.values[name]) for name in names if name not in ("prompt", "sample")),
        tokens=tokens,
        token_count=len(row.tokens),
        values=tuple(tuple(numbers[: len(tokens)]) for numbers in values),
    )
