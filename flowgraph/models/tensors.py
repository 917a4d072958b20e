"""How many numbers the tensors of a module hold, added up without making one.

Not here: which modules a family has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensors:
    """The numbers in some modules.

    `products` are factors of a matrix product, once for each token; `vectors` are added, scaled by or looked up.
    `sides` adds up inputs and outputs of the linear layers: adapters of rank r on all of them have r · sides numbers.
    """

    products: int = 0
    vectors: int = 0
    sides: int = 0

    def __add__(self, more: Tensors) -> Tensors:
        return Tensors(self.products + more.products, self.vectors + more.vectors, self.sides + more.sides)

    def __rmul__(self, count: int) -> Tensors:
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

    >>> 2 * linear(4, 3) + vector(4)
    Tensors(products=24, vectors=4, sides=14)
    """
    return Tensors(inputs * outputs, outputs * bias, inputs + outputs)


def matrix(rows: int, columns: int) -> Tensors:
    """Count a factor of a product that adapters leave alone: a router, an expert, the kernel of a convolution."""
    return Tensors(rows * columns)


def vector(numbers: int) -> Tensors:
    """Count numbers that are added or scaled by, as in a norm."""
    return Tensors(0, numbers)


def gated(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Count an MLP of three linear layers: gate, up and down."""
    return 2 * linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)


def plain(hidden: int, width: int, *, bias: bool = False) -> Tensors:
    """Count an MLP of two linear layers: up and down."""
    return linear(hidden, width, bias=bias) + linear(width, hidden, bias=bias)
