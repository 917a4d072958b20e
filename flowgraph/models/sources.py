"""What a `--model` text names: a built-in model, a local folder, or a model of the hub.

Cheap and without torch; the weights are read by `loading`, the sizes by `shapes`.
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

# Source: Schulman et al. 2025 (LoRA Without Regret): adapters learn best at ten times the rate of all weights.
LORA_RATE = 10.0

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


_LORA = "+lora="
_RANGES = {"rank": (1, 1024), "alpha": (1, 65536)}


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters that are trained in place of a model's weights; what they add is scaled by alpha / rank."""

    rank: int
    alpha: int


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: `name` as it was given, and the folder, size or adapters where it has them.

    A model of the hub that was given by a short name has its id as `name`.
    """

    name: str
    kind: Kind
    path: Path | None = None
    size: TinySize | None = None
    lora: Lora | None = None

    @property
    def base(self) -> ModelSource:
        """Return what the adapters stand on; without adapters, this.

        >>> ModelSource("tiny+lora=8", "tiny", lora=Lora(8, 16)).base
        ModelSource(name='tiny', kind='tiny', path=None, size=None, lora=None)
        """
        return replace(self, name=self.name.rpartition(_LORA)[0], lora=None) if self.lora is not None else self

    def suggest(self) -> Mapping[str, float]:
        """Return settings known to train this model, by "op.setting"; empty if none are known.

        >>> ModelSource("tiny", "tiny").suggest()
        {'update.lr': 0.001, 'run.steps': 300}
        """
        known = SUGGESTED.get("tiny" if self.kind == "tiny" else self.base.name, {})
        return {
            name: LORA_RATE * value if self.lora and name == "update.lr" else value for name, value in known.items()
        }


def resolve(text: str, *, cache: Path) -> ModelSource:
    """Return what a text names; no weights are read and no network is asked.

    `tiny` (or `tiny:hidden=64,layers=2`), `smollm2-135m` (its folder lies in `cache`), a local folder
    (it exists, starts with `.`, `/` or `~`, or has several slashes), a hub id `org/name`, or the short name of a model
    of the table, as `qwen3-8b`. Each may end in `+lora=RANK` or `+lora=RANK,alpha=ALPHA`: then adapters are trained in
    place of its weights; alpha is 2 · rank if not said.

    Raises ModelError for a text that names none of these, and for a folder that is not there.
    """
    base, plus, options = text.rpartition(_LORA)
    if plus:
        under = resolve(base, cache=cache)
        if under.lora is not None:
            raise ModelError.bad_option(text, "adapters stand on a model that has none", "say +lora= once")
        return replace(under, name=f"{under.name}{plus}{options}", lora=_lora(text, options))
    if text.partition(":")[0] == "tiny":
        return ModelSource(text, "tiny", size=parse_size(text))
    if text.casefold() == smollm2.NAME:
        return ModelSource(smollm2.NAME, "package", cache / smollm2.NAME)
    if text and (_exists(text) or _is_path(text)):
        return ModelSource(text, "folder", _folder(text))
    known = full_name(text)
    if known is not None or _HUB_ID.fullmatch(text):
        return ModelSource(known or text, "hub")
    raise ModelError.unknown(text, BUILT_IN, nearest_names(text, BUILT_IN))


def _lora(text: str, options: str) -> Lora:
    """Read what stands after `+lora=`."""
    rank, *others = options.split(",")
    found = {"rank": _whole(text, "rank", rank)}
    for each in others:
        name, _, value = each.partition("=")
        if name != "alpha" or name in found:
            what = "alpha is given twice" if name in found else f"`lora` has no option `{name}`"
            raise ModelError.bad_option(text, what, "it takes a rank and alpha: +lora=8,alpha=16")
        found[name] = _whole(text, name, value)
    return Lora(**{"alpha": 2 * found["rank"]} | found)


def _whole(text: str, name: str, value: str) -> int:
    low, high = _RANGES[name]
    if not (value.isascii() and value.isdigit() and low <= int(value) <= high):
        raise ModelError.bad_option(text, f"{name}={value} is no whole number from {low} to {high}")
    return int(value)


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
