"""Traits of ports and ops: what a node says of its inputs and rows beyond their types, for the laws and passes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

RowTrait = Literal["kept", "reordered", "new"]
"""Whether a node gives the rows of its inputs, those rows in another order, or others: fewer, more, or its own."""


class By(enum.StrEnum):
    """Which model must have made the value on a port: `new: Annotated[LogProbs, By.TRAINED]`."""

    TRAINED = "trained"  # the model that the loss trains, computed again in each micro-batch
    SAMPLER = "sampler"  # the model that drew the rows, at the version that drew them
    FIXED = "fixed"  # any model, as long as this loss does not train it


class Rows(enum.Enum):
    """What a port says of the rows it takes: `greedy: Annotated[Scores, Rows.OTHER]`."""

    OTHER = "other"  # they need not be the rows of the node's other inputs
    NONE = "none"  # of a State: it holds no rows of earlier steps


@dataclass(frozen=True)
class Parts:
    """Of the record on a port the body reads these parts only: `rollout: Annotated[Rollout, Parts("tokens")]`.

    Only these travel to it, and it is refused any other.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Corrects:
    """What a port takes corrects for the weights that drew the rows: `Annotated[ImportanceWeights, Corrects("old")]`.

    Then the node's port of that name may take other weights' log-probs than those that drew: what made the correction
    must have read the same on its own port of that name. `Corrects()` is for a node that has no such port.
    """

    port: str = ""
