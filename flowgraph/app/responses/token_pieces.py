"""The text of each token of recorded responses, from the tokenizer of the model that sampled them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import FlowError
from flowgraph.models import hub, sources, tiny
from flowgraph.models.tokenizing import read_tokenizer
from flowgraph.runtime.record.run_folder import VALIDATION, RunFolder

if TYPE_CHECKING:
    from flowgraph.app.request import Say

Decode = Callable[[Sequence[int]], str]

MAX_TOKENS_A_LETTER = 8  # which one letter may take; then its bytes are shown as they are
_BROKEN = "\ufffd"  # of bytes that do not form a letter yet
_VOCABULARY = 2**31  # of any tokenizer: here it only decodes


def decoder_of(run: RunFolder, node: str, cache: Path, say: Say) -> Decode | None:
    """Return a function from token ids to text, for the tokens that a node of a run sampled, end tokens included.

    `cache` is the folder of models; nothing is downloaded, because a run's folder may name any model. Returns None if
    the tokenizer is not on this machine or cannot be read, and tells `say` why. An id that the tokenizer does not have
    becomes U+FFFD. Raises RunFolderError if the run's facts cannot be read.
    """
    models = run.facts().get("models") or {}
    param = next((name for name in models if node == VALIDATION or node.startswith(f"{name}.")), None)
    if param is None:
        say(f"{run.path} does not say which model sampled, so its tokens have no text")
        return None
    try:
        source = sources.resolve(str(models[param]["name"]), cache=cache)
        if source.kind == "tiny":
            letters = dict(enumerate(tiny.VOCABULARY))
            return lambda tokens: "".join(letters.get(token, _BROKEN) for token in tokens)
        saved = [run.path / name / param for name in ("weights", "best")]
        original = hub.cached_tokenizer(source.base.name) if source.kind == "hub" else source.path
        folders = (
            path for path in (*saved, original) if path is not None and (path / "tokenizer_config.json").is_file()
        )
        if (folder := next(folders, None)) is None:
            say(f"the tokenizer of {source.name} is not on this machine, so tokens have no text")
            return None
        tokenizer: Any = read_tokenizer(folder, _VOCABULARY)[0]
    except (FlowError, OSError) as error:
        say(f"tokens have no text, because the tokenizer of {param} cannot be read: {error}")
        return None
    size = len(tokenizer)

    def decode(tokens: Sequence[int]) -> str:
        if all(0 <= token < size for token in tokens):
            return str(tokenizer.decode(list(tokens), skip_special_tokens=False))
        return "".join(decode([token]) if 0 <= token < size else _BROKEN for token in tokens)

    return decode


def pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
    """Return the text of each token; if several tokens form one character, the last has it, and the others have "".

    At most 8 tokens count as one character; incomplete characters become U+FFFD.

    >>> pieces([1, 2, 3], lambda tokens: "".join("_ab√"[token] for token in tokens))
    ['a', 'b', '√']
    """
    texts, before, waiting = list[str](), list[int](), list[int]()
    for token in tokens:
        waiting.append(token)
        start = decode(before)
        text = decode([*before, *waiting])
        text = text[len(start) :] if text.startswith(start) else decode(waiting)
        if text.endswith(_BROKEN) and len(waiting) < MAX_TOKENS_A_LETTER:
            texts.append("")
            continue
        texts.append(text)
        before, waiting = waiting, []
    if waiting:
        texts[-1] = decode(waiting)
    return texts
