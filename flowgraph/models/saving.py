"""Writing a model: into a draft beside its place, then renamed once, so that a folder is whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.errors import ModelError
from flowgraph.files.hashes import write_sums
from flowgraph.models.heads import head_of
from flowgraph.models.libraries import Model, Tokenizer
from flowgraph.models.lora import adapted, merged, save_adapters
from flowgraph.models.silence_transformers import quiet

if TYPE_CHECKING:
    from torch import Tensor


def save(
    model: Model,
    tokenizer: Tokenizer,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
    *,
    sums: bool = True,
) -> Path:
    """Save a model and its tokenizer as a folder that transformers loads, by the `Auto` class of the model's head.

    `weights` are written in place of the model's own, by the same names: those of a model that holds a share only.
    Adapters are merged into what they stand on, and those of a language model lie in `adapter` beside it as well.
    With `sums` the hashes of its files lie beside them, and are compared when it is loaded.
    Raises ModelError if the folder exists or cannot be written (a full disk, no permission);
    then nothing is left behind.
    """
    from safetensors import SafetensorError

    if os.path.lexists(folder):
        raise ModelError.exists(folder)
    try:
        with whole_folder(folder) as draft, quiet():
            _write(model, draft, model.state_dict() if weights is None else weights)
            tokenizer.save_pretrained(draft)
            if sums:
                write_sums(draft)
    except (OSError, SafetensorError) as error:
        if folder.is_dir():  # another process was faster
            raise ModelError.exists(folder) from None
        raise ModelError.not_saved(folder, reason(error)) from None
    return folder


def _write(model: Model, folder: Path, weights: Mapping[str, Tensor]) -> None:
    if not adapted(model):
        model.save_pretrained(folder, state_dict=dict(weights))
        return
    model.save_pretrained(folder, state_dict=merged(model, weights))
    if head_of(model) == "tokens":
        save_adapters(model, weights, folder / "adapter")


@contextlib.contextmanager
def whole_folder(target: Path) -> Generator[Path]:
    """Give a draft folder beside `target`; on success make it durable and rename it, else remove it.

    Raises OSError if `target` exists with something in it by then.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    draft.mkdir()
    try:
        yield draft
        for path in (*draft.rglob("*"), draft):
            _sync(path)
        draft.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reason(error: Exception) -> str:
    """Say why something was not written, and which path it was.

    >>> reason(FileExistsError(17, "File exists", "a/b"))
    'File exists (a/b)'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return str(error)
