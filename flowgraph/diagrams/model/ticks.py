"""Round numbers for an axis, and numbers as short text."""

from __future__ import annotations

import math
from math import inf

SPREAD_AT_LEAST = 1e-9  # of the largest value: a smaller spread is rounding, and is drawn as a constant
LEAST = 1e-290  # a spread below it cannot be cut into parts


def step_of(low: float, high: float, about: int) -> float:
    """Give the step of 1, 2 or 5 times a power of ten that cuts a range into about that many parts.

    >>> step_of(0, 1, 4), step_of(0, 70, 4), step_of(0, 5e-6, 5)
    (0.2, 20.0, 1e-06)
    """
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.75)


def widened(low: float, high: float) -> tuple[float, float]:
    """Give a range with something in it: around a constant, a tenth of it to either side, or one around zero.

    >>> widened(2.0, 2.0), widened(0.0, 0.0), widened(0.0, 3.0)
    ((1.8, 2.2), (-1.0, 1.0), (0.0, 3.0))
    """
    largest = max(abs(low), abs(high))
    if high - low > max(largest * SPREAD_AT_LEAST, LEAST):
        return low, high
    room = largest / 10 if largest > LEAST else 1.0
    return low - room, high + room


def ticks(low: float, high: float, about: int = 4, *, whole: bool = False) -> tuple[float, ...]:
    """Give the round numbers within a range, ends included; `whole` gives whole ones only.

    >>> ticks(0, 1, 5), ticks(3, 7, 4, whole=True)
    ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (3.0, 4.0, 5.0, 6.0, 7.0))
    """
    step = step_of(*widened(low, high), about)
    step = max(1.0, step) if whole else step
    slack = 1e-6
    first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    return tuple(round(place * step, 12 - _exponent(step)) for place in range(first, last + 1))


def padded(low: float, high: float) -> tuple[float, float]:
    """Give a range with a little room to either side; one that is never negative starts at zero or above.

    >>> padded(0.0, 1.0), padded(-1.0, 1.0), padded(0.0, 0.0)
    ((0.0, 1.05), (-1.1, 1.1), (0.0, 1.1))
    """
    least = 0.0 if low >= 0 else -inf
    low, high = widened(low, high)
    room = (high - low) / 20
    return max(least, low - room), high + room


def number_text(value: float, step: float = 0.0) -> str:
    """Write a number in few characters: as exact as the axis' `step`, or to three digits without one.

    >>> number_text(0.2, 0.2), number_text(40000.0, 20000.0), number_text(2e-6, 1e-6), number_text(-0.0, 0.5)
    ('0.2', '40k', '2e-6', '0.0')
    >>> number_text(0.93456), number_text(1234.5), number_text(3.0), number_text(1e-6)
    ('0.935', '1.23k', '3', '1e-6')
    """
    size = max(abs(value), step)
    if size and not 1e-3 <= size < 1e9:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if value else "0"
    scale, letter = next(((s, letter) for s, letter in ((1e6, "M"), (1e3, "k")) if size >= s), (1.0, ""))
    if step and step < scale / 10:
        scale, letter = 1.0, ""  # the step would need more digits than the letter saves
    if step:
        return f"{value / scale + 0.0:.{max(0, -_exponent(step / scale))}f}{letter}"
    return f"{value / scale + 0.0:.3g}{letter}"


def _exponent(step: float) -> int:
    return math.floor(math.log10(step) + 1e-9)
