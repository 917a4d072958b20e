"""What NeMo-RL's own recipes say of the runs that its performance summary lists, and the summary does not.

They lie in `nemo_rl_recipes.csv`, each with its file and commit. A run without one has the defaults of `Recipe`, which
are those of most recipes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.forecast.report import Row
from benchmarks.forecast.rl_names import model

FILE = Path(__file__).with_name("nemo_rl_recipes.csv")


@dataclass(frozen=True)
class Recipe:
    """The samples of a prompt, whether activations are computed again, and of runs that overlap: how they do.

    `in_flight` says that drawing goes on while weights change; `draws` counts the devices that draw, None if not said.
    """

    samples: int = 32
    checkpointing: bool = False
    in_flight: bool = True
    draws: int | None = None


def recipe_of(row: Row) -> Recipe:
    """Return the recipe of a run, by its model, its mode and its devices; the defaults if none is listed."""
    return _recipes().get(_key(row), Recipe())


@cache
def _recipes() -> Mapping[tuple[str | None, str, str], Recipe]:
    with FILE.open(encoding="utf-8") as lines:
        return {_key(row): _recipe(row) for row in csv.DictReader(lines)}


def _key(row: Row) -> tuple[str | None, str, str]:
    return model(row["model"]), row["policy_mode"], row["gpus"]


def _recipe(row: Row) -> Recipe:
    return Recipe(
        samples=int(row["samples_per_prompt"]),
        checkpointing=row["activation_checkpointing"] == "true",
        in_flight=row["in_flight_weight_updates"] != "false",
        draws=int(row["rollout_gpus"]) if row["rollout_gpus"] else None,
    )
