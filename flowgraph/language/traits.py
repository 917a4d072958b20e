"""Traits of ports and ops, which tell laws and passes more about inputs and rows than their types do."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal

NodeName = Annotated[str, "the name of the node"]
"""The type of the parameter `name` by which a call of a node names it: `name: NodeName = ""`.

Every node takes this argument. A node declares the parameter so that type checkers know it; its body does not get it.
"""

RowTrait = Literal["kept", "reordered", "new"]
"""Whether a node returns the rows of its inputs, the same rows in another order, or other rows."""


class By(enum.StrEnum):
    """The model that must have made the value on a port: `new: Annotated[LogProbs, By.TRAINED]`."""

    TRAINED = "trained"  # the model that the loss trains, computed again in each micro-batch
    SAMPLER = "sampler"  # the model that sampled the rows, at the same version
    FIXED = "fixed"  # any model, as long as this loss does not train it


class Rows(enum.Enum):
    """The rows that a port takes: `greedy: Annotated[Scores, Rows.OTHER]`."""

    OTHER = "other"  # they need not be the rows of the node's other inputs
    NONE = "none"  # of a State: it holds no rows of earlier steps


@dataclass(frozen=True)
class Parts:
    """The parts of the record on a port that the body reads: `rollout: Annotated[Rollout, Parts("tokens")]`.

    Only these parts are sent to the node, and reading another one raises LawError.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Corrects:
    """The value on a port corrects for the weights that sampled: `Annotated[ImportanceWeights, Corrects("old")]`.

    The node's port of that name may then take log-probs of other weights than those that sampled the rows. The node
    that computes the correction must have a port of the same name, with the same log-probs. `Corrects()` names none.
    """

    port: str = ""
