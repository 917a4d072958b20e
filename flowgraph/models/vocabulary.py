"""Which ids a model gives to which pieces of text, and whether one model can read the tokens that another drew."""

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
    """Give a model's pieces of text, each with its id; of its files only the tokenizer's and config.json are read."""
    if source.kind == "tiny":
        return {piece: place for place, piece in enumerate(tiny.VOCABULARY)}
    tokenizer, _ = read_tokenizer(folder_of(source, cache, say), shape(source).vocabulary)
    known: Mapping[str, int] = tokenizer.get_vocab()
    return known


def refuse_other_tokens(
    reader: str, writer: str, sources: Mapping[str, ModelSource], cache: Path, say: Callable[[str], None]
) -> None:
    """Refuse that the model `reader` reads tokens which `writer` draws, if one of them means other text to it.

    A reader may know more pieces than the writer. Raises ModelError that names both models and the first such token.
    """
    if sources[reader].base.name == sources[writer].base.name:
        return
    there, here = (vocabulary(sources[name], cache, say) for name in (writer, reader))
    for piece, place in sorted(there.items(), key=lambda each: each[1]):
        if here.get(piece) != place:
            raise ModelError.other_tokens(
                (reader, sources[reader].name), (writer, sources[writer].name), piece, place, here.get(piece)
            )
