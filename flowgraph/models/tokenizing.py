"""Load a model's tokenizer, and ensure that training can use it: an end token, a chat template, ids that fit the model.

Also chats as token ids, and the checks of requests for samples that engines share.
"""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import ModelError
from flowgraph.language.handle import Completion, SampleRequest, Stopping
from flowgraph.models import template_probe
from flowgraph.models.libraries import Tokenizer, quiet, transformers

# For base models, which have no chat template: the contents, a line each; a complete answer gets the end token.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}"
    "{% elif message['role'] == 'assistant' and not add_generation_prompt %}{{ eos_token }}{% endif %}{% endfor %}"
)


def read_tokenizer(folder: Path, vocabulary: int) -> tuple[Tokenizer, tuple[str, ...]]:
    """Return the tokenizer in a model's folder, and a note for the user about each part that was added to it.

    A padding token and a chat template are added if it has none. `vocabulary` is the number of rows of the model's
    embedding. Raises ModelError if the tokenizer cannot be read, has no end token, has ids that the model lacks, or has
    a chat template that takes too much memory or time.
    """
    try:
        with quiet():
            tokenizer = transformers().AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # noqa: BLE001 - transformers raises from many libraries
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError.broken(folder, f"the tokenizer cannot be read: {lines[0]}") from None
    if tokenizer.eos_token_id is None:
        hint = "name its `eos_token` in tokenizer_config.json"
        raise ModelError.unusable(folder, "the tokenizer has no end token, so no response would end", hint)
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocabulary:
        raise ModelError.unusable(folder, f"the tokenizer has ids up to {largest}, the model has {vocabulary} rows")
    notes: list[str] = []
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
        notes.append(f"{folder}: the tokenizer has no padding token; {tokenizer.eos_token} pads")
    if tokenizer.chat_template is not None:
        try_template(tokenizer, folder)
    else:
        ids: list[int] = tokenizer("0")["input_ids"]
        starts_with_bos = bool(ids) and ids[0] == tokenizer.bos_token_id
        tokenizer.chat_template = ("{{ bos_token }}" if starts_with_bos else "") + PLAIN_TEMPLATE
        notes.append(f"{folder}: the tokenizer has no chat template; a prompt is its messages joined by line breaks")
    return tokenizer, tuple(notes)


def try_template(tokenizer: Tokenizer, folder: Path) -> None:
    """Raise ModelError if the tokenizer's chat template takes too much memory, time or text for a short chat.

    It is rendered in another process, with the limits of `template_probe`. A template that raises an error is accepted
    here; `ChatTokenizer.encode` then raises that error. `folder` is named in the ModelError.
    """
    try:
        source = tokenizer.get_chat_template()
    except ValueError:  # several, none of them the default: rendering raises then
        return
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    command = [sys.executable, "-I", template_probe.__file__]
    job = json.dumps({"template": source, "tokens": tokens})
    status = subprocess.run(command, input=job, text=True, capture_output=True, check=False, env={}).returncode
    if status == template_probe.TOO_LARGE:
        bounds = f"{show_bytes(template_probe.MEMORY_BYTES)} or {template_probe.CHARACTERS} characters"
        raise ModelError.unusable(folder, f"its chat template takes more than {bounds} for a one-message chat")
    if status < 0:
        what = f"its chat template does not render a one-message chat in {template_probe.SECONDS} s"
        raise ModelError.unusable(folder, what)


# ------------------------------------------------------------------------------------------- chats and requests


class ChatTokenizer:
    """A transformers tokenizer for chats: messages to token ids, and token ids to text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, messages: Sequence[Mapping[str, str]], answer: str | None = None) -> tuple[int, ...]:
        """Return the token ids of a chat that ends where the model's answer starts, or after `answer` if it is given.

        The model's chat template formats the chat, and an error in the template is raised. Without a template, the
        contents of the messages are joined by line ends, and an answer is followed by the end token.
        """
        chat = [*messages] if answer is None else [*messages, {"role": "assistant", "content": answer}]
        if self._tokenizer.chat_template:
            return self.tokens_of(self.render(chat, answers=answer is None))
        ids = tuple(self._tokenizer.encode("\n".join(message["content"] for message in chat), verbose=False))
        return ids if answer is None else (*ids, self._tokenizer.eos_token_id)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, answers: bool = True
    ) -> str:
        """Return the text of a chat by the model's template, which gets the schemas of `tools`.

        If `answers`, the text ends where the model's turn starts. An error of the template is raised.
        """
        schemas = {"tools": list(tools)} if tools else {}
        text: str = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=answers, tokenize=False, **schemas
        )
        return text

    def tokens_of(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a rendered text, to which nothing is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of a response from its token ids; special tokens are left out unless `special`."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=not special)
        return text


def end_tokens(eos: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids of the tokens that end a response: those in `eos`, and the end token of `tokenizer` if it has one.

    `eos` is the value in the model's configuration: one id, a list of ids, or None.
    """
    ends = [*(eos if isinstance(eos, list) else [eos]), getattr(tokenizer, "eos_token_id", None)]
    return frozenset(int(token) for token in ends if token is not None)


def stop_length(tokens: Sequence[int], stopping: Stopping, tokenizer: Any) -> int | None:
    """Return the number of tokens up to and including the first that completes a stop; None if no stop is found.

    A stop is one of the token ids of `stopping`, or one of its texts anywhere in the decoded response, where the text
    may begin and end inside a token. The response is decoded with its special tokens; a character whose bytes are
    incomplete is U+FFFD.
    """
    length = next((place + 1 for place, token in enumerate(tokens) if token in stopping.ids), None)

    def has_text(count: int) -> bool:
        text = tokenizer.decode(list(tokens[:count]), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in stopping.texts)

    count = len(tokens) if length is None else length
    if not stopping.texts or not has_text(count):
        return length
    return bisect_left(range(count + 1), True, key=has_text)


def cut_at_stop(completion: Completion, stopping: Stopping, tokenizer: Any) -> Completion:
    """Return a completion that is cut after its first stop and marked as finished; unchanged if it has no stop.

    The stop itself is kept. Tokens, log-probs and version spans after it are dropped.
    """
    length = stop_length(completion.tokens, stopping, tokenizer)
    if length is None:
        return completion
    spans = tuple((start, version) for start, version in completion.versions if start < length)
    return Completion(completion.tokens[:length], completion.logprobs[:length], True, spans)


def refuse_request(request: SampleRequest, positions: int | None, vocabulary: int | None = None) -> None:
    """Raise ModelError for a request with an empty context, more than `positions` tokens, or an unknown stop id.

    The tokens are the context plus `max_tokens`; `positions` None means no limit. A stop id must be less than
    `vocabulary`; None means that stop ids are not checked.
    """
    if not request.context:
        raise ModelError.no_prompt()
    if positions is not None and len(request.context) + request.max_tokens > positions:
        raise ModelError.too_long(len(request.context), request.max_tokens, positions)
    strange = [token for token in request.stopping.ids if vocabulary is not None and token >= vocabulary]
    if vocabulary is not None and strange:
        raise ModelError.no_such_token(strange[0], vocabulary)
