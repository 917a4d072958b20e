"""Random keys: every random number is named by (run seed, step, node, …), never by rank, batch or order of arrival."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class Key:
    """The name of the random numbers of one node in one step of one run.

    A node that uses random numbers takes a keyword parameter of this type. The same key gives the same numbers.
    """

    seed: int = 0
    step: int = 0
    node: str = ""

    def bits(self, *parts: int) -> tuple[int, int]:
        """Return two unsigned 64-bit integers that depend only on this key and `parts`, such as row indices.

        >>> Key(1).bits(2, 3) == Key(1).bits(2, 3) != Key(1).bits(3, 2)
        True
        """
        numbers = ",".join(str(int(number)) for number in (self.seed, self.step, *parts))
        text = f"{numbers};{self.node}".encode()  # the name comes last, so that no two keys have the same text
        low, high = struct.unpack("<2Q", hashlib.blake2b(text, digest_size=16).digest())
        return low, high

    def generator(self, *parts: int, position: int = 0) -> Generator:
        """Return a NumPy generator (Philox) whose numbers depend only on this key, `parts` and `position`.

        `position` is a word of the counter: generators with different positions do not overlap.
        """
        import numpy as np

        return np.random.Generator(np.random.Philox(key=self.bits(*parts), counter=[0, position, 0, 0]))
