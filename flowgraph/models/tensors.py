"""How many numbers lie in a model's tensors: added up module by module, without making one.

A module is counted as what it has, by the part that its numbers take in a pass. Not here: which modules a family has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensors:
    """The numbers of some modules.

    `products` are factors of a product, once for each token; `vectors` are added, scaled by or looked up. `sides` adds
    up inputs and outputs of the linear layers: an adapter of rank r on each of them has r · sides numbers.
    """

    products: int = 0
    vectors: int = 0
    sides: int = 0

    def __add__(self, other: Tensors) -> Tensors:
        return Tensors(self.products + other.products, self.vectors + other.vectors, self.sides + other.sides)

    def times(self, count: int) -> Tensors:
        """Return so many of it."""
        return Tensors(count * self.products, count * self.vectors, count * self.sides)

    @property
    def numbers(self) -> int:
        """Count all of them.

        >>> linear(4, 3, bias=True).numbers
        15
        """
        return self.products + self.vectors


def linear(inputs: int, outputs: int, *, bias: bool = False) -> Tensors:
    """Count a linear layer.

    >>> linear(4, 3) + vector(4)
    Tensors(products=12, vectors=4, sides=7)
    """
    return Tensors(inputs * outputs, outputs * bias, inputs + outputs)


def matrix(rows: int, columns: int) -> Tensors:
    """Count a factor of a product that is no linear layer of its own: routers, experts, kernels of convolutions."""
    return Tensors(rows * columns)


def vector(numbers: int) -> Tensors:
    """Count what is added or scaled by, as in a norm."""
    return Tensors(0, numbers)


def gated(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Count an MLP of three linear layers: gate, up and down."""
    return linear(hidden, width, bias=bias).times(2) + linear(width, hidden, bias=bias)


def plain(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Count an MLP of two linear layers: up and down."""
    return linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)


def gated_expert(hidden: int, width: int) -> Tensors:
    """Count one expert of three matrices; those of a layer lie in one tensor, so that none is a linear layer."""
    return matrix(hidden, 3 * width)
