"""Chat templates in the forms of several families, on a tokenizer of bytes, and a handle that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from flowgraph.language.handle import Completion, SampleRequest, SingleRank
from flowgraph.models.tokenizing import ChatTokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot_id|>", "<eos>")

_CHATML = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "<|im_end|>\n{% endif %}{% for message in messages %}"
    "{% if message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_HEADERS = (
    "{% for message in messages %}<|start|>{{ 'ipython' if message.role == 'tool' else message.role }}<|end|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n"
    "{% endif %}"
)
_ALTERNATING = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}<eos>{% endif %}{% endfor %}"
)
_FORGETS_THOUGHTS = (
    "{% set last = namespace(at=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' and loop.index0 < last.at %}"
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ message.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_OPENS_THOUGHTS = (
    "{% for message in messages %}{% if message.role == 'user' %}<|start|>{{ message.content }}"
    "{% elif message.role == 'assistant' %}<|end|>{{ message.content.split('</think>')[-1] }}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|end|><think>\n{% endif %}"
)
TEMPLATES = {
    "chatml": (_CHATML, "<|im_end|>"),
    "headers": (_HEADERS, "<|eot_id|>"),
    "alternating": (_ALTERNATING, "<eos>"),
    "forgets thoughts": (_FORGETS_THOUGHTS, "<|im_end|>"),
    "opens thoughts": (_OPENS_THOUGHTS, "<eos>"),
}


@cache
def tokenizer_of(name: str) -> ChatTokenizer:
    """Return a tokenizer of bytes with the template of this name; its end token ends a turn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    template, end = TEMPLATES[name]
    return ChatTokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token=end,
            additional_special_tokens=[token for token in SPECIAL if token != end],
            chat_template=template,
            clean_up_tokenization_spaces=False,
        )
    )


class Scripted:
    """A handle whose turns are what `say` answers to a request; it keeps the requests."""

    version, ranks = 0, SingleRank()

    def __init__(self, name: str, say: Callable[[SampleRequest], str], *, lockstep: bool = False) -> None:
        self.tokenizer, self.say, self.lockstep = tokenizer_of(name), say, lockstep
        self.end, self.requests = TEMPLATES[name][1], list[SampleRequest]()

    async def sample(self, request: SampleRequest) -> Completion:
        self.requests.append(replace(request))
        tokens = self.tokenizer.tokens_of(self.say(request) + self.end)
        cut = tokens[: request.max_tokens]
        return Completion(cut, (-1.0,) * len(cut), len(cut) == len(tokens), ((0, 0),))


def by_turn(texts: Sequence[str]) -> Callable[[SampleRequest], str]:
    """Return what says these texts, one a turn."""
    return lambda request: texts[request.turn] if request.turn < len(texts) else "done"


def shown(handle: Any, tokens: Sequence[int]) -> str:
    return str(handle.tokenizer.decode(tokens, special=True))
