"""What a `--model` text names: a built-in model, a local folder, or a model of the hub.

Cheap and without torch; the weights are read by `loading`, the sizes by `shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowgraph.errors import ModelError
from flowgraph.models import smollm2
from flowgraph.models.tiny import TinySize, parse_size

Kind = Literal["tiny", "package", "folder", "hub"]

BUILT_IN = ("tiny", smollm2.NAME)

# Source: measured on two CPU cores: copying three digits, and sums in plain words.
SUGGESTED: Mapping[str, Mapping[str, float]] = {
    "tiny": {"update.lr": 1e-3, "run.steps": 300},
    smollm2.NAME: {
        "update.lr": 4e-5,
        "update.micro_batch_tokens": 2048,
        "generate.temperature": 0.8,
        "refill.temperature": 0.8,
        "run.steps": 20,
    },
}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: `name` as it was given, and the folder or size where it has one."""

    name: str
    kind: Kind
    path: Path | None = None
    size: TinySize | None = None

    def suggest(self) -> Mapping[str, float]:
        """Give settings known to train this model, by "op.setting"; empty if none are known.

        >>> ModelSource("tiny", "tiny").suggest()
        {'update.lr': 0.001, 'run.steps': 300}
        """
        name = "tiny" if self.kind == "tiny" else self.name
        return SUGGESTED.get(name, {})


def resolve(text: str, *, cache: Path) -> ModelSource:
    """Say what a text names; no weights are read and no network is asked.

    `tiny` (or `tiny:hidden=64,layers=2`), `smollm2-135m` (its folder lies in `cache`), a local folder
    (it exists, starts with `.`, `/` or `~`, or has several slashes), or a hub id `org/name`.

    Raises ModelError for a text that names none of these, and for a folder that is not there.
    """
    if text.partition(":")[0] == "tiny":
        return ModelSource(text, "tiny", size=parse_size(text))
    if text == smollm2.NAME:
        return ModelSource(text, "package", cache / smollm2.NAME)
    if text and (_exists(text) or _is_path(text)):
        return ModelSource(text, "folder", _folder(text))
    if _HUB_ID.fullmatch(text):
        return ModelSource(text, "hub")
    raise ModelError.unknown(text, BUILT_IN)


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith("/") or "\\" in text


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a path, or no such user
        return False


def _folder(text: str) -> Path:
    if not _exists(text):
        raise ModelError.no_folder(text)
    path = Path(text).expanduser()
    if not path.is_dir():
        raise ModelError.not_a_folder(text)
    return path
