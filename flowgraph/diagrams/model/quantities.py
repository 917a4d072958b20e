"""Seconds, counts and lists as the words of a sentence. Bytes are in `cluster.show_bytes`."""

from __future__ import annotations

from collections.abc import Sequence


def show_s(seconds: float | None) -> str:
    """Write seconds in three digits; what is not known as `unknown`.

    >>> show_s(123.4), show_s(12.34), show_s(0.01234), show_s(None)
    ('123 s', '12.3 s', '12.3 ms', 'unknown')
    """
    if seconds is None:
        return "unknown"
    if seconds and seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def many(count: int, one: str, more: str = "") -> str:
    """Say how many of something there are.

    >>> many(1, "rank"), many(3000, "rank"), many(2, "box", "boxes")
    ('1 rank', '3,000 ranks', '2 boxes')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Write names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
