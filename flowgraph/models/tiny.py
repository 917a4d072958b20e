"""The small Llama that needs no download: 109k parameters by default, and a vocabulary of 20 tokens.

Not here: loading it from a folder (`loading`), and settings that train it (`sources`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import ModelError, nearest
from flowgraph.models.libraries import Model, Tokenizer, seeded, tokenizers, transformers

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<sep>")
CHARACTERS = "0123456789 +-=?"
VOCABULARY = (*SPECIAL, *CHARACTERS)

# A turn of the user is its text; an answer is between <sep> and <eos>.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<sep>' + message['content'] + eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<sep>' }}{% endif %}"
)

_RANGES = {
    "hidden": (8, 1024),
    "layers": (1, 32),
    "heads": (1, 32),
    "intermediate": (8, 4096),
    "positions": (16, 8192),
}


@dataclass(frozen=True)
class TinySize:
    """The size of a tiny model: widths in units, `positions` in tokens."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    intermediate: int = 192
    positions: int = 128


def config_of(size: TinySize) -> dict[str, int]:
    """Return the sizes of a tiny model by their names in config.json, without the vocabulary."""
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": size.positions,
    }


def parse_size(text: str) -> TinySize:
    """Return the size that a text such as `tiny:hidden=64,layers=2` describes; other options have their defaults.

    Raises ModelError for an option that is unknown, not an integer, or out of its range, and if `hidden` is not a
    multiple of 2 · `heads`.

    >>> parse_size("tiny:hidden=32,layers=1")
    TinySize(hidden=32, layers=1, heads=4, intermediate=192, positions=128)
    """
    sizes = dict[str, int]()
    for part in filter(None, text.partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        if name not in _RANGES:
            raise ModelError.bad_option(text, f"`tiny` has no option `{name}`", nearest(name, _RANGES))
        sizes[name] = parse_whole(text, name, value, *_RANGES[name])
    size = TinySize(**sizes)
    if size.hidden % (2 * size.heads):
        why = f"hidden={size.hidden} is not a multiple of twice heads={size.heads}"
        raise ModelError.bad_option(text, why, "a head has an even number of units")
    return size


def parse_whole(text: str, name: str, value: str, low: int, high: int) -> int:
    """Return the text `value` of the option `name` as an integer.

    Raises ModelError, which names the model `text`, if `value` is not an integer from `low` to `high`.
    """
    if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
        raise ModelError.bad_option(text, f"{name}={value} is not an integer from {low} to {high}")
    return int(value)


def build(seed: int, size: TinySize | None = None) -> tuple[Model, Tokenizer]:
    """Return a new tiny model (float32, eval mode, on the CPU) and its tokenizer; `size` None means the default size.

    The same seed gives the same weights; the random state of the caller is unchanged.
    """
    import torch

    size = size or TinySize()
    library = transformers()
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = library.LlamaConfig(
        vocab_size=len(VOCABULARY), num_key_value_heads=size.heads, tie_word_embeddings=False, **config_of(size), **ids
    )
    with seeded(seed):
        model = library.LlamaForCausalLM(config)
    model.generation_config = library.GenerationConfig(**ids)
    tokens = tokenizers()
    words = {token: i for i, token in enumerate(VOCABULARY)}
    backend = tokens.Tokenizer(tokens.models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = tokens.pre_tokenizers.Split("", "isolated")
    backend.decoder = tokens.decoders.Fuse()
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<sep>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=size.positions,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    return model.to(dtype=torch.float32).eval(), tokenizer


def make(seed: int, folder: Path, size: TinySize | None = None) -> Path:
    """Create a tiny model and its tokenizer, save them to a new folder, and return the folder.

    Raises ModelError if the folder exists or cannot be written.
    """
    from flowgraph.models.saving import save

    model, tokenizer = build(seed, size)
    return save(model, tokenizer, folder)
