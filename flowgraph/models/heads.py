"""What a model's last layer gives: logits, a number at each token, or one for a whole text; and putting on another.

All are classes of transformers, told apart by their names, so that each is saved and loaded as an ordinary folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowgraph.errors import ModelError
from flowgraph.models.libraries import Model, transformers
from flowgraph.models.seeded_init import seeded
from flowgraph.models.silence_transformers import quiet

if TYPE_CHECKING:
    from flowgraph.language.values import Head

AUTO: Mapping[Head, str] = {
    "tokens": "AutoModelForCausalLM",
    "values": "AutoModelForTokenClassification",
    "score": "AutoModelForSequenceClassification",
}
SAID: Mapping[Head, str] = {
    "tokens": "a causal language model",
    "values": "a classifier of tokens with one label",
    "score": "a classifier of whole texts with one label",
}
_ENDINGS: Mapping[str, Head] = {"ForTokenClassification": "values", "ForSequenceClassification": "score"}


def head_of(model: Model) -> Head:
    """Say what a model's last layer gives, by the name of its class; the class that FSDP makes of it ends the same."""
    return named_head(type(model).__name__)


def declared(config: Mapping[str, Any]) -> Head:
    """Say what the last layer of a saved model gives, by the content of its config.json.

    >>> declared({"architectures": ["LlamaForTokenClassification"]})
    'values'
    """
    names = config.get("architectures") or [""]
    return named_head(str(names[0]))


def named_head(name: str) -> Head:
    """Say what the last layer of a class of transformers gives.

    >>> named_head("LlamaForCausalLM"), named_head("Qwen2ForSequenceClassification")
    ('tokens', 'score')
    """
    for ending, head in _ENDINGS.items():
        if name.endswith(ending):
            return head
    return "tokens"


def head_names(model: Model) -> frozenset[str]:
    """Name the parameters of a head that gives numbers; of one that gives logits none, they may be the embedding."""
    if head_of(model) == "tokens":
        return frozenset()
    inside = f"{model.base_model_prefix}."
    return frozenset(name for name, _ in model.named_parameters() if not name.startswith(inside))


def refuse_labels(model: Model, name: object) -> None:
    """Refuse a head that gives several numbers; raise ModelError."""
    if head_of(model) != "tokens" and model.config.num_labels != 1:
        raise ModelError.unusable(name, f"its head gives {model.config.num_labels} numbers, where one is wanted")


def with_head(model: Model, head: Head, name: object, seed: int | None = None) -> tuple[Model, str]:
    """Take over a model's backbone, which is then shared, under a head of one output; say what the head starts from.

    A head of one output that the model has is copied. Else it is zero: every process has the same without a word, the
    first estimates are the known constant 0, and its first update depends on no draw; with a `seed` it is drawn, since
    a head that is never trained would stay zero. Raises ModelError if transformers has no such class for this model.
    """
    import torch

    made, had = _classifier(model, head, name), dict(model.named_parameters())
    own = {each: made.get_parameter(each) for each in sorted(head_names(made))}
    taken = {each for each, tensor in own.items() if each in had and had[each].shape == tensor.shape}
    with torch.no_grad():
        for each, tensor in own.items():
            tensor.zero_()
            if each in taken:
                tensor.copy_(had[each])
            elif seed is not None:
                with seeded(seed):
                    tensor.normal_(std=getattr(made.config, "initializer_range", 0.02))
    if taken:
        return made, f"{name}: its head for whole texts is taken over, and gives a number at each token"
    start = "starts at 0" if seed is None else "is drawn from the seed"
    return made, f"{name}: its head was replaced by one of one output, which {start}"


def _classifier(model: Model, head: Head, name: object) -> Model:
    """Make the class of a head around a model's backbone; the head itself is still to be filled."""
    import torch

    config, prefix = model.config, model.base_model_prefix
    config.num_labels = 1
    try:
        with quiet(), torch.device("meta"):
            made = getattr(transformers(), AUTO[head]).from_config(config)
    except ValueError:
        what = f"transformers makes no {AUTO[head]} of the family {config.model_type}"
        raise ModelError.unusable(name, what) from None
    setattr(made, prefix, getattr(model, prefix))
    made.config = config
    for child, part in made.named_children():
        if child != prefix:
            part.to_empty(device=model.device).to(model.dtype)
    return made.eval()
