"""Low-rank adapters on all linear layers: added, told apart from what they stand on, switched off, and merged into it.

They are put into the model itself (`peft.inject_adapter_in_model`), which so keeps its class, its names and its calls.
Source: Hu et al. 2021 (LoRA), arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import ModelError
from flowgraph.models.heads import head_names, head_of
from flowgraph.models.libraries import Model, peft
from flowgraph.models.seeded_init import seeded
from flowgraph.models.silence_transformers import quiet

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.models.sources import ModelSource

_KINDS = {"tokens": "CAUSAL_LM", "values": "TOKEN_CLS", "score": "SEQ_CLS"}
_A, _B, _UNDER = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."


def add_adapters(model: Model, source: ModelSource, seed: int) -> Model:
    """Put the source's adapters on each linear layer but the head, in place; at first they change no output.

    The same seed gives the same adapters in every process. Raises ModelError without the package peft.
    """
    assert source.lora is not None, "the source asks for adapters"
    try:
        library = peft()
    except ImportError:
        raise ModelError.unusable(source.name, "needs the package peft", "pip install 'flowgraph[models]'") from None
    config = library.LoraConfig(
        r=source.lora.rank,
        lora_alpha=source.lora.alpha,
        target_modules="all-linear",
        exclude_modules="|".join(sorted({name.rpartition(".")[0] for name in head_names(model)})) or None,
        base_model_name_or_path=source.base.name,
        task_type=_KINDS[head_of(model)],
    )
    with quiet(), seeded(seed):
        return library.inject_adapter_in_model(config, model).eval()


def adapted(model: Model) -> bool:
    """Say whether a model has adapters."""
    return any(name.endswith(_A) for name, _ in model.named_parameters())


def trained_names(model: Model) -> frozenset[str]:
    """Name the parameters that an update changes: all, or of a model with adapters these and a head of numbers."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    own = frozenset(name for name in names if name.endswith((_A, _B)))
    return own | head_names(model) if own else frozenset(names)


def set_trainable(model: Model, trainable: bool) -> None:
    """Let gradients reach what an update changes, or nothing."""
    names = trained_names(model) if trainable else frozenset[str]()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)


def carried_names(model: Model) -> frozenset[str]:
    """Name the weights that two copies of a model can differ in: what updates change, and buffers if all of it is."""
    return trained_names(model) if adapted(model) else frozenset(model.state_dict())


@contextlib.contextmanager
def adapters_off(model: Model) -> Generator[None]:
    """Let a model answer inside as what its adapters stand on does; what is trained stays as it was."""
    layers = list(_layers(model))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for _, layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for _, layer in layers:
            layer.enable_adapters(True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)


def _layers(model: Model) -> Iterator[tuple[str, Any]]:
    """Give the layers with adapters, each with its name."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))


def merged(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a model's whole weights as those of the plain model: W + alpha / rank · B A under each layer's own name.

    `weights` are the model's own by name, from wherever they lie. Source: as above, section 4.1, equation 3.
    """
    plain = {name.replace(_UNDER, "."): tensor for name, tensor in weights.items() if not name.endswith((_A, _B))}
    for name, layer in _layers(model):
        change = weights[name + _B] @ weights[name + _A] * layer.scaling["default"]
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + (change.T if layer.fan_in_fan_out else change)
    return plain


def save_adapters(model: Model, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a model's adapters alone, as a folder that `peft.PeftModel.from_pretrained` puts on the plain model."""
    from safetensors.torch import save_file

    folder.mkdir()
    own = {name: tensor.contiguous() for name, tensor in weights.items() if name.endswith((_A, _B))}
    plain = {f"base_model.model.{name.replace('.default', '')}": tensor for name, tensor in own.items()}
    save_file(plain, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(folder)
