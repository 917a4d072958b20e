"""Round numbers for an axis, units of an axis of time, and numbers as short text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf

SPREAD_MIN = 1e-9  # of the largest value: a smaller spread is rounding, and is drawn as a constant
SMALLEST = 1e-290  # a spread below it cannot be cut into parts


def tick_step(low: float, high: float, about: int) -> float:
    """Return the distance between ticks that cuts a range into about `about` parts: 1, 2 or 5 times a power of ten.

    Raises ValueError if `high` is not greater than `low`.

    >>> tick_step(0, 1, 4), tick_step(0, 70, 4), tick_step(0, 5e-6, 5)
    (0.2, 20.0, 1e-06)
    """
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.75)


def widen_constant(low: float, high: float) -> tuple[float, float]:
    """Return the range (`low`, `high`), made wider if its ends are equal apart from rounding.

    Such a range is extended on either side by 10% of the larger absolute value, or by 1 around 0.

    >>> widen_constant(2.0, 2.0), widen_constant(0.0, 0.0), widen_constant(0.0, 3.0)
    ((1.8, 2.2), (-1.0, 1.0), (0.0, 3.0))
    """
    largest = max(abs(low), abs(high))
    if high - low > max(largest * SPREAD_MIN, SMALLEST):
        return low, high
    room = largest / 10 if largest > SMALLEST else 1.0
    return low - room, high + room


def ticks(low: float, high: float, about: int = 4, *, integers: bool = False) -> tuple[float, ...]:
    """Return approximately `about` round numbers from `low` to `high` in ascending order, at equal distances.

    With `integers`, they are whole numbers. The result is empty if the range contains no such number.

    >>> ticks(0, 1, 5), ticks(3, 7, 4, integers=True)
    ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), (3.0, 4.0, 5.0, 6.0, 7.0))
    """
    step = tick_step(*widen_constant(low, high), about)
    step = max(1.0, step) if integers else step
    slack = 1e-6
    first, last = math.ceil(low / step - slack), math.floor(high / step + slack)
    return tuple(round(place * step, 12 - _exponent(step)) for place in range(first, last + 1))


def labelled_ticks(low: float, high: float, about: int = 4, *, integers: bool = False) -> tuple[tuple[float, str], ...]:
    """Return the ticks that `ticks` chooses for an axis, each as (number, text), with the decimals that they need.

    All texts have the letter that is short for the largest tick, if any, or all have an exponent; 0 has neither.

    >>> labelled_ticks(0, 1, 2), labelled_ticks(0, 1e6, 2)
    (((0.0, '0.0'), (0.5, '0.5'), (1.0, '1.0')), ((0.0, '0'), (500000.0, '0.5M'), (1000000.0, '1.0M')))
    """
    marks = ticks(low, high, about, integers=integers)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    largest = max(map(abs, marks), default=0.0)
    return tuple((mark, number_text(mark, step, largest)) for mark in marks)


def pad_range(low: float, high: float) -> tuple[float, float]:
    """Return a range with 5% of its length added at either end; the lower end stays at or above 0 if `low` is.

    A range whose ends are equal is widened first, as `widen_constant` does.

    >>> pad_range(0.0, 1.0), pad_range(-1.0, 1.0), pad_range(0.0, 0.0)
    ((0.0, 1.05), (-1.1, 1.1), (0.0, 1.1))
    """
    floor = 0.0 if low >= 0 else -inf
    low, high = widen_constant(low, high)
    room = (high - low) / 20
    return max(floor, low - room), high + room


def number_text(value: float, step: float = 0.0, largest: float = 0.0) -> str:
    """Return a number as short text, with the decimals of an axis whose ticks are `step` apart, or with three digits.

    Three significant digits are used if `step` is 0. Thousands and millions are written with k and M if that is short,
    numbers below 0.001 or from 1e9 on with an exponent; `largest` is the axis's largest absolute number, which decides.

    >>> number_text(0.2, 0.2), number_text(40000.0, 20000.0), number_text(2e-6, 1e-6), number_text(-0.0, 0.5)
    ('0.2', '40k', '2e-6', '0.0')
    >>> number_text(0.93456), number_text(1234.5), number_text(3.0), number_text(1e-6)
    ('0.935', '1.23k', '3', '1e-6')
    >>> number_text(999.96)
    '1k'
    """
    value = value if step or not math.isfinite(value) else float(f"{value:.3g}")  # 999.96 is 1k
    size = max(abs(value), step, largest)
    if size and not 1e-3 <= size < 1e9:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}" if value else "0"
    # With a smaller step, a letter would save fewer digits than the step needs after the point.
    letters = ((s, letter) for s, letter in ((1e6, "M"), (1e3, "k")) if size >= s and not 0 < step < s / 10)
    scale, letter = next(letters, (1.0, ""))
    if step and letter and not value:
        return "0"
    if step:
        return f"{value / scale + 0.0:.{max(0, -_exponent(step / scale))}f}{letter}"
    return f"{value / scale + 0.0:.3g}{letter}"


def _exponent(step: float) -> int:
    return math.floor(math.log10(step) + 1e-9)


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time: its name, and its seconds."""

    name: str
    seconds: float


TIME_UNITS = (TimeUnit("ms", 1e-3), TimeUnit("s", 1.0), TimeUnit("min", 60.0), TimeUnit("h", 3600.0))
FROM_S = (0.0, 1.0, 180.0, 3 * 3600.0)  # the length of an axis from which on each unit reads best


def time_unit(length_s: float) -> TimeUnit:
    """Return the unit in which to label a time axis: ms, s from 1 s on, min from 3 minutes on, or h from 3 hours on.

    `length_s`, the length of the axis in seconds, must not be negative.

    >>> time_unit(0.02).name, time_unit(90).name, time_unit(600).name, time_unit(36000).name
    ('ms', 's', 'min', 'h')
    """
    return [unit for unit, from_s in zip(TIME_UNITS, FROM_S, strict=True) if length_s >= from_s][-1]


def time_ticks(length_s: float, about: int = 8) -> tuple[tuple[float, str], ...]:
    """Return approximately `about` ticks of a time axis from 0 to `length_s`, each as (seconds, text with a unit).

    >>> time_ticks(1.5, 3)
    ((0.0, '0 s'), (0.5, '0.5 s'), (1.0, '1.0 s'), (1.5, '1.5 s'))
    """
    unit = time_unit(length_s)
    marks = labelled_ticks(0.0, length_s / unit.seconds, about)
    return tuple((mark * unit.seconds, f"{text if mark else 0} {unit.name}") for mark, text in marks)
