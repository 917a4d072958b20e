"""Save a model: files are written to a draft folder, which is then renamed, so that a folder is complete or absent."""

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
from flowgraph.models.libraries import Model, Tokenizer, quiet
from flowgraph.models.lora import has_adapters, merged_weights, save_adapters

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
    """Save a model and its tokenizer to a new folder that transformers can load, and return the folder.

    `weights`, by name, are written in place of the model's own, for a process that holds only a shard of them. Adapters
    are merged into the weights; those of a language model are also saved in the subfolder `adapter`. If `sums`, the
    SHA-256 of each file is saved in the folder too, for `load` to compare.

    Raises ModelError if the folder exists or cannot be written (a full disk, no permission); no files remain then.
    """
    from safetensors import SafetensorError

    if os.path.lexists(folder):
        raise ModelError.exists(folder)
    try:
        with whole_folder(folder) as draft, quiet():
            tensors = model.state_dict() if weights is None else weights
            model.save_pretrained(
                draft, state_dict=merged_weights(model, tensors) if has_adapters(model) else dict(tensors)
            )
            if has_adapters(model) and head_of(model) == "tokens":
                save_adapters(model, tensors, draft / "adapter")
            tokenizer.save_pretrained(draft)
            if sums:
                write_sums(draft)
    except (OSError, SafetensorError) as error:
        if folder.is_dir():  # another process was faster
            raise ModelError.exists(folder) from None
        raise ModelError.not_saved(folder, write_error_text(error)) from None
    return folder


@contextlib.contextmanager
def whole_folder(target: Path) -> Generator[Path]:
    """Yield a draft folder for the `with` block to fill; afterwards, flush it to disk and rename it to `target`.

    The draft is next to `target`, whose parents are created. If the block or the rename raises, the draft is deleted.
    Raises OSError if the draft cannot be written, or if `target` then exists and is not an empty folder.
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


def write_error_text(error: Exception) -> str:
    """Return the message of an error that was raised by a write, with the path if the error has one.

    >>> write_error_text(FileExistsError(17, "File exists", "a/b"))
    'File exists (a/b)'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return str(error)
