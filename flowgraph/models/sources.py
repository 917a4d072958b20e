"""Resolve the text of `--model`: a built-in model, a local folder, or a model of the hub.

This is fast and does not import torch. Not here: the weights (`loading`) and the sizes (`sizes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flowgraph.errors import ModelError
from flowgraph.models import smollm2
from flowgraph.models.table import full_name, nearest_names
from flowgraph.models.tiny import TinySize, parse_size, parse_whole

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

# Source: Schulman et al. 2025 (LoRA Without Regret): adapters learn best at ten times the rate of all weights.
LORA_RATE = 10.0

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_LORA = "+lora="
_RANGES = {"rank": (1, 1024), "alpha": (1, 65536)}


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters that are trained instead of a model's weights; their output is multiplied by alpha / rank."""

    rank: int
    alpha: int


@dataclass(frozen=True)
class ModelSource:
    """The origin of a model: its name and kind, and its folder, size and adapters if it has them.

    `name` is the text that the user wrote, except for models of the hub: there it is the hub id, even for a short name.
    """

    name: str
    kind: Kind
    path: Path | None = None
    size: TinySize | None = None
    lora: Lora | None = None

    @property
    def base(self) -> ModelSource:
        """Return the source without its adapters; a source without adapters is returned unchanged.

        >>> ModelSource("tiny+lora=8", "tiny", lora=Lora(8, 16)).base
        ModelSource(name='tiny', kind='tiny', path=None, size=None, lora=None)
        """
        return replace(self, name=self.name.rpartition(_LORA)[0], lora=None) if self.lora is not None else self

    def suggest(self) -> Mapping[str, float]:
        """Return suggested settings for training this model, by names such as `update.lr`; {} if none are known.

        Models with adapters get ten times the learning rate.

        >>> ModelSource("tiny", "tiny").suggest()
        {'update.lr': 0.001, 'run.steps': 300}
        """
        settings = SUGGESTED.get("tiny" if self.kind == "tiny" else self.base.name, {})
        if self.lora and "update.lr" in settings:
            return {**settings, "update.lr": LORA_RATE * settings["update.lr"]}
        return settings


def resolve(text: str, *, cache: Path) -> ModelSource:
    """Return the source that `text` names, without reading weights or using the network.

    The text is `tiny` (or `tiny:hidden=64,layers=2`), `smollm2-135m` (its folder is in `cache`), a local folder (it
    exists, starts with `.`, `/` or `~`, ends with `/`, or has several slashes or a backslash), a hub id `org/name`, or
    the short name of a model of the table, such as `qwen3-8b`. Each may end in `+lora=RANK` or
    `+lora=RANK,alpha=ALPHA`: adapters are then trained instead of the weights; alpha is 2 · rank by default.

    Raises ModelError for any other text, for options that are unknown or out of range, and for a path that is not a
    folder.
    """
    base, plus, options = text.rpartition(_LORA)
    if plus:
        source = resolve(base, cache=cache)
        if source.lora is not None:
            raise ModelError.bad_option(text, "adapters need a model that has none", "write +lora= once")
        rank, *pairs = options.split(",")
        values = {"rank": parse_whole(text, "rank", rank, *_RANGES["rank"])}
        for pair in pairs:
            name, _, value = pair.partition("=")
            if name != "alpha" or name in values:
                what = "alpha is given twice" if name in values else f"`lora` has no option `{name}`"
                raise ModelError.bad_option(text, what, "it takes a rank and alpha: +lora=8,alpha=16")
            values[name] = parse_whole(text, name, value, *_RANGES[name])
        lora = Lora(**{"alpha": 2 * values["rank"]} | values)
        return replace(source, name=f"{source.name}{plus}{options}", lora=lora)
    if text.partition(":")[0] == "tiny":
        return ModelSource(text, "tiny", size=parse_size(text))
    if text.casefold() == smollm2.NAME:
        return ModelSource(smollm2.NAME, "package", cache / smollm2.NAME)
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith("/") or "\\" in text
    if text and (_exists(text) or looks_like_path):
        if not _exists(text):
            raise ModelError.no_folder(text)
        path = Path(text).expanduser()
        if not path.is_dir():
            raise ModelError.not_a_folder(text)
        return ModelSource(text, "folder", path)
    hub_id = full_name(text)
    if hub_id is not None or _HUB_ID.fullmatch(text):
        return ModelSource(hub_id or text, "hub")
    raise ModelError.unknown(text, BUILT_IN, nearest_names(text, BUILT_IN))


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long for a path, or no such user
        return False
