"""A model's head, which gives logits, a number at each token, or a number for a whole text; and its replacement.

Each kind of head is a class of transformers, recognized by its name, so that models are saved and loaded as usual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.errors import ModelError
from flowgraph.models.libraries import Model, quiet, seeded, transformers

if TYPE_CHECKING:
    from flowgraph.language.values import Head

AUTO: Mapping[Head, str] = {
    "tokens": "AutoModelForCausalLM",
    "values": "AutoModelForTokenClassification",
    "rewards": "AutoModelForTokenClassification",
    "score": "AutoModelForSequenceClassification",
}
DESCRIPTIONS: Mapping[Head, str] = {
    "tokens": "a causal language model",
    "values": "a classifier of tokens with one label",
    "rewards": "a classifier of tokens with one label",
    "score": "a classifier of whole texts with one label",
}
_ENDINGS: Mapping[str, Head] = {"ForTokenClassification": "values", "ForSequenceClassification": "score"}


def head_of(model: Model) -> Head:
    """Return the kind of a model's head, from the name of its class: "tokens", "values" or "score".

    These give logits of the next token, a number at each token, or a number for a whole text.
    """
    return named_head(type(model).__name__)


def declared_head(config: Mapping[str, Any]) -> Head:
    """Return the kind of head that the first architecture in a config.json has: "tokens", "values" or "score".

    It is "tokens" if config.json lists no architecture, or one that is not recognized.

    >>> declared_head({"architectures": ["LlamaForTokenClassification"]})
    'values'
    """
    names = config.get("architectures") or [""]
    return named_head(str(names[0]))


def named_head(name: str) -> Head:
    """Return the kind of head of a transformers class, from its name; "tokens" for a name that is not recognized.

    >>> named_head("LlamaForCausalLM"), named_head("Qwen2ForSequenceClassification")
    ('tokens', 'score')
    """
    heads: list[Head] = [head for ending, head in _ENDINGS.items() if name.endswith(ending)]
    return heads[0] if heads else "tokens"


def head_names(model: Model) -> frozenset[str]:
    """Return the names of the parameters of a value or score head; the set is empty for a language model."""
    if head_of(model) == "tokens":
        return frozenset()
    inside = f"{model.base_model_prefix}."
    return frozenset(name for name, _ in model.named_parameters() if not name.startswith(inside))


def with_head(model: Model, head: Head, name: object, seed: int | None = None) -> tuple[Model, str]:
    """Return a model with another head on the backbone of `model`, and a note that says how the head was initialized.

    `head` is not "tokens"; the new head has one output. The backbone is shared, and its configuration is changed.
    Parameters of the old head with the same name and shape are copied. The others are 0, so that all processes get the
    same head and the first estimates are 0; with a `seed` they are random, for a head that is never trained. Raises
    ModelError, which names `name`, if transformers has no such class for this model.
    """
    import torch

    config, prefix, before = model.config, model.base_model_prefix, dict(model.named_parameters())
    config.num_labels = 1
    try:
        with quiet(), torch.device("meta"):
            new = getattr(transformers(), AUTO[head]).from_config(config)
    except ValueError:
        what = f"transformers makes no {AUTO[head]} of the family {config.model_type}"
        raise ModelError.unusable(name, what) from None
    setattr(new, prefix, getattr(model, prefix))
    new.config = config
    for child, part in new.named_children():
        if child != prefix:
            part.to_empty(device=model.device).to(model.dtype)
    new.eval()
    tensors = {name: new.get_parameter(name) for name in sorted(head_names(new))}
    copied = {name for name, tensor in tensors.items() if name in before and before[name].shape == tensor.shape}
    with torch.no_grad():
        for parameter, tensor in tensors.items():
            tensor.zero_()
            if parameter in copied:
                tensor.copy_(before[parameter])
            elif seed is not None:
                with seeded(seed):
                    tensor.normal_(std=getattr(new.config, "initializer_range", 0.02))
    if copied:
        return new, f"{name}: its head for whole texts is reused at each token"
    start = "starts at 0" if seed is None else "is drawn from the seed"
    return new, f"{name}: its head was replaced by one of one output, which {start}"
