"""Random keys: every draw is named by (run seed, step, node, …), never by rank, batch or order of arrival."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class Key:
    """Name the random draws of one node in one step of one run.

    A node that draws takes a keyword parameter of this type; the runtime fills it in. Called by hand, a
    node uses the key it is given: the same key gives the same draws.
    """

    seed: int = 0
    step: int = 0
    node: str = ""

    def bits(self, *parts: int) -> tuple[int, int]:
        """Hash this key and `parts` (for example prompt, sample) to two 64-bit words.

        >>> Key(1).bits(2, 3) == Key(1).bits(2, 3) != Key(1).bits(3, 2)
        True
        """
        numbers = ",".join(str(int(each)) for each in (self.seed, self.step, *parts))
        text = f"{numbers};{self.node}".encode()  # the name comes last: no two keys are written alike
        low, high = struct.unpack("<2Q", hashlib.blake2b(text, digest_size=16).digest())
        return low, high

    def generator(self, *parts: int, position: int = 0) -> Generator:
        """Make the generator of one draw; `position` jumps within its stream (Philox counter)."""
        import numpy as np

        return np.random.Generator(np.random.Philox(key=self.bits(*parts), counter=[0, position, 0, 0]))
