"""The small Llama that is made on the spot: 109k parameters, 20 characters, no download.

Not here: reading it back from a folder (`loading`), and which settings train it (`sources`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from flowgraph.errors import ModelError, nearest
from flowgraph.models.libraries import Model, Tokenizer, tokenizers, transformers
from flowgraph.models.seeded_init import seeded

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<sep>")
CHARACTERS = "0123456789 +-=?"
VOCABULARY = (*SPECIAL, *CHARACTERS)

# A turn of the user is its text; an answer stands between <sep> and <eos>.
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
    """Size of a tiny model: widths in units, `positions` in tokens."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    intermediate: int = 192
    positions: int = 128


def parse_size(text: str) -> TinySize:
    """Read `tiny` or `tiny:hidden=64,layers=2`.

    >>> parse_size("tiny:hidden=32,layers=1")
    TinySize(hidden=32, layers=1, heads=4, intermediate=192, positions=128)

    Raises ModelError for an option that is unknown, no integer, or out of its range.
    """
    options = text.partition(":")[2]
    given = dict(_option(text, part) for part in options.split(",") if part)
    size = TinySize(**given)
    if size.hidden % (2 * size.heads):
        why = f"hidden={size.hidden} is not a multiple of twice heads={size.heads}"
        raise ModelError.bad_option(text, why, "a head has an even number of units")
    return size


def _option(text: str, part: str) -> tuple[str, int]:
    name, _, value = part.partition("=")
    if name not in _RANGES:
        known = [field.name for field in fields(TinySize)]
        raise ModelError.bad_option(text, f"`tiny` has no option `{name}`", nearest(name, known))
    low, high = _RANGES[name]
    if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
        raise ModelError.bad_option(text, f"{name}={value} is no whole number from {low} to {high}")
    return name, int(value)


def build(seed: int, size: TinySize | None = None) -> tuple[Model, Tokenizer]:
    """Make the model (float32, eval mode) and its tokenizer in memory.

    The same seed gives the same weights; the caller's random state is left as it was.
    """
    return _model(seed, size or TinySize()), _tokenizer(size or TinySize())


def make(seed: int, folder: Path, size: TinySize | None = None) -> Path:
    """Make the model and save it into `folder`, which must not exist yet.

    Raises ModelError if the folder exists or cannot be written.
    """
    from flowgraph.models.saving import save

    model, tokenizer = build(seed, size)
    return save(model, tokenizer, folder)


def _model(seed: int, size: TinySize) -> Model:
    import torch

    library = transformers()
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = library.LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.positions,
        tie_word_embeddings=False,
        **ids,
    )
    with seeded(seed):
        model = library.LlamaForCausalLM(config)
    model.generation_config = library.GenerationConfig(**ids)
    return model.to(dtype=torch.float32).eval()


def _tokenizer(size: TinySize) -> Tokenizer:
    library = tokenizers()
    ids = {token: place for place, token in enumerate(VOCABULARY)}
    backend = library.Tokenizer(library.models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = library.pre_tokenizers.Split("", "isolated")
    backend.decoder = library.decoders.Fuse()
    return transformers().PreTrainedTokenizerFast(
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
