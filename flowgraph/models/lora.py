"""Low-rank adapters on linear layers: add, list, disable, save, and merge them into the weights.

`peft.inject_adapter_in_model` adds them to the model itself, which keeps its class, its names and its calls.

Source: Hu et al. 2021 (LoRA), arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import ModelError
from flowgraph.errors.distribution import install_command
from flowgraph.models.heads import head_names, head_of
from flowgraph.models.libraries import Model, peft, quiet, seeded

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.models.sources import ModelSource

_KINDS = {"tokens": "CAUSAL_LM", "values": "TOKEN_CLS", "rewards": "TOKEN_CLS", "score": "SEQ_CLS"}
_A, _B, _BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."


def add_adapters(model: Model, source: ModelSource, seed: int) -> Model:
    """Add LoRA adapters to every linear layer of a model except its head, in place, and return the model in eval mode.

    `source.lora` gives rank and alpha. New adapters do not change the output. The same `seed` gives the same adapters
    in every process. Raises ModelError if the package peft is not installed.
    """
    assert source.lora is not None, "the source asks for adapters"
    try:
        library = peft()
    except ImportError:
        raise ModelError.unusable(source.name, "needs the package peft", install_command("models")) from None
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


def has_adapters(model: Model) -> bool:
    """Return whether a model has LoRA adapters."""
    return any(name.endswith(_A) for name, _ in model.named_parameters())


def trained_names(model: Model) -> frozenset[str]:
    """Return the names of the parameters that updates change; tied parameters appear under each of their names.

    These are the adapters and a value or score head if the model has adapters, and otherwise all parameters.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    adapters = frozenset(name for name in names if name.endswith((_A, _B)))
    return adapters | head_names(model) if adapters else frozenset(names)


def set_trainable(model: Model, trainable: bool) -> None:
    """Set `requires_grad` in place: to `trainable` for the parameters that updates change, else to False."""
    names = trained_names(model) if trainable else frozenset[str]()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)


def carried_names(model: Model) -> frozenset[str]:
    """Return the names of the weights that must be sent to another copy of the model to update that copy.

    These are the adapters and a value or score head if the model has adapters, and otherwise all names in its state
    dict.
    """
    return trained_names(model) if has_adapters(model) else frozenset(model.state_dict())


@contextlib.contextmanager
def adapters_off(model: Model) -> Generator[None]:
    """Disable a model's adapters inside the `with` block, so that it computes as its base model does.

    Afterwards all adapters are enabled, and `requires_grad` of each parameter is restored.
    """
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
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))


def merged_weights(model: Model, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model by name, with its adapters merged: W + alpha / rank · B A for each adapted layer.

    `weights` are the model's weights by name, on any device; they are not changed. The result has the names of the base
    model, so that it can be loaded without adapters.

    Source: Hu et al. 2021 (LoRA), arXiv 2106.09685, section 4.1, equation 3.
    """
    plain = {name.replace(_BASE, "."): tensor for name, tensor in weights.items() if not name.endswith((_A, _B))}
    for name, layer in _layers(model):
        change = weights[name + _B] @ weights[name + _A] * layer.scaling["default"]
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + (change.T if layer.fan_in_fan_out else change)
    return plain


def save_adapters(model: Model, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write a model's adapters to a new folder, which `peft.PeftModel.from_pretrained` can load on the base model.

    `weights` are the model's weights by name; only adapters are written. Raises OSError or SafetensorError if a file
    cannot be written, and FileExistsError if the folder exists.
    """
    from safetensors.torch import save_file

    folder.mkdir()
    adapters = {
        f"base_model.model.{name.replace('.default', '')}": tensor.contiguous()
        for name, tensor in weights.items()
        if name.endswith((_A, _B))
    }
    save_file(adapters, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(folder)
