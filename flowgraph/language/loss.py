"""A loss is terms: per-token values, the mask they are averaged over, and how; `update` divides by global counts."""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import PlainValidator

from flowgraph.errors import LawError
from flowgraph.language.values import Kind, Linear, Mask, Measure

if TYPE_CHECKING:
    from torch import Tensor


class Aggregation(enum.StrEnum):
    """The reduction of per-token terms to one number.

    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, section 3.3; Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783.
    """

    TOKEN_MEAN = "token-mean"  # sum over tokens / number of tokens
    SEQUENCE_MEAN = "sequence-mean"  # mean over rows of each row's token mean
    SEQUENCE_SUM = "sequence-sum"  # mean over rows of each row's token sum


def _how(value: object) -> Aggregation | float:
    if isinstance(value, str) and value in list(Aggregation):
        return Aggregation(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
        return float(value)
    raise ValueError(f"should be {', '.join(Aggregation)}, or a number above 0")


How = Annotated[Aggregation | float, PlainValidator(_how)]
"""An aggregation; a number is a constant length: mean over rows of each row's token sum / that number."""


@dataclass(frozen=True)
class Counts:
    """The number of tokens that a mask keeps, and of rows with such tokens, in a whole minibatch on all ranks."""

    tokens: float
    rows: float


@dataclass(frozen=True)
class Term:
    """One part of a loss: `values` [B, T] (None while counting), its mask [B, T], its weight and aggregation."""

    values: Tensor | None
    mask: Tensor
    aggregation: Aggregation | float
    weight: float = 1.0

    def counts(self) -> Counts:
        """Return the number of tokens that this term's mask keeps, and the number of rows with at least one of them."""
        return Counts(float(self.mask.sum()), float((self.mask.sum(1) > 0).sum()))

    def total(self, counts: Counts) -> Tensor:
        """Return this term's share of the loss of a minibatch, a scalar; `counts` are those of the whole minibatch.

        The shares of all micro-batches and ranks add up to the minibatch's loss, up to rounding. If the mask keeps
        nothing, the term is 0 with a zero gradient. Masked values are zeroed first, so that NaN there has no effect;
        but a node that multiplies must zero the factors itself, since the gradient of 0 times NaN is NaN. Raises
        LawError if the values and the mask have different shapes.
        """
        assert self.values is not None, "a term that only counts has no total"
        if self.values.shape != self.mask.shape:
            what = f"a loss has terms of shape {list(self.values.shape)} under a mask of {list(self.mask.shape)}"
            hint = "both are [rows, tokens]; a number for each row is [rows, 1] to broadcast over tokens"
            raise LawError(what, hint=hint)
        keep = self.mask > 0
        values = self.values.masked_fill(~keep, 0.0) * self.mask
        if self.aggregation is Aggregation.TOKEN_MEAN:
            return self.weight * values.sum() / max(counts.tokens, 1.0)
        rows = values.sum(1)
        if self.aggregation is Aggregation.SEQUENCE_MEAN:
            rows = rows / self.mask.sum(1).clamp(min=1.0)
        elif not isinstance(self.aggregation, Aggregation):
            rows = rows / self.aggregation
        return self.weight * rows.sum() / max(counts.rows, 1.0)


class Loss(Linear):
    """The loss that `update` descends: a weighted list of terms. Adding joins lists, a factor scales the weights."""

    kind = Kind.SCALAR

    def __init__(self, terms: Sequence[Term], measures: Sequence[Measure] = ()) -> None:
        parts: Any = terms
        if not isinstance(parts, list | tuple) or not all(isinstance(term, Term) for term in parts):
            what = f"a Loss is made of terms, each [rows, tokens] under a mask, not of a {type(parts).__name__}"
            raise LawError(what, hint="Loss.of(values, mask)")
        super().__init__(tuple(terms), measures)

    @classmethod
    def of(
        cls,
        values: Tensor,
        mask: Mask,
        aggregation: Aggregation | float = Aggregation.TOKEN_MEAN,
        measures: Sequence[Measure] = (),
    ) -> Self:
        """Return a loss with one term: `values` [B, T] averaged over the tokens that `mask` [B, T] keeps.

        `aggregation` is an Aggregation, or a constant length above 0 that divides the sum of each row before the mean
        over rows. Raises LawError for any other.
        """
        try:
            how = _how(aggregation)
        except ValueError as error:
            raise LawError(f"a Loss is aggregated by {aggregation!r}: {error}") from None
        return cls([Term(values, mask.data, how)], measures)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return the weighted terms, whose sum is the loss."""
        terms: tuple[Term, ...] = self.data
        return terms

    def times(self, factor: float) -> Self:
        """Return the loss with the weight of each term multiplied by `factor`; its measures are not multiplied."""
        return type(self)([replace(term, weight=term.weight * factor) for term in self.terms], self.measures)

    def total(self, counts: Sequence[Counts]) -> Tensor:
        """Return the loss, a scalar; `counts` has those of each term over the whole minibatch, in order.

        On a micro-batch, the result is its share of the loss. Raises LawError as `Term.total` does, and ValueError if
        there are more or fewer counts than terms.
        """
        totals = (term.total(count) for term, count in zip(self.terms, counts, strict=True))
        return functools.reduce(operator.add, totals)
