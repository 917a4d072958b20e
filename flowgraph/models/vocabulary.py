"""The ids of a model's tokens, and whether one model can read the tokens that another one samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flowgraph.errors import ModelError
from flowgraph.models import tiny
from flowgraph.models.loading import folder_of
from flowgraph.models.sizes import shape
from flowgraph.models.sources import ModelSource
from flowgraph.models.tokenizing import read_tokenizer


def vocabulary(source: ModelSource, cache: Path, say: Callable[[str], None]) -> Mapping[str, int]:
    """Return a model's tokens with their ids; only config.json and the tokenizer's files are read."""
    if source.kind == "tiny":
        return {token: i for i, token in enumerate(tiny.VOCABULARY)}
    tokenizer, _ = read_tokenizer(folder_of(source, cache, say), shape(source).vocabulary)
    ids: Mapping[str, int] = tokenizer.get_vocab()
    return ids


def refuse_other_tokens(
    reader: str, writer: str, sources: Mapping[str, ModelSource], cache: Path, say: Callable[[str], None]
) -> None:
    """Raise ModelError if a token that `writer` samples means other text to `reader`.

    A reader may have more tokens than the writer. The error names both models and the first such token.
    """
    if sources[reader].base.name == sources[writer].base.name:
        return
    written, readable = (vocabulary(sources[name], cache, say) for name in (writer, reader))
    for token, number in sorted(written.items(), key=lambda item: item[1]):
        if readable.get(token) != number:
            raise ModelError.other_tokens(
                (reader, sources[reader].name), (writer, sources[writer].name), token, number, readable.get(token)
            )
