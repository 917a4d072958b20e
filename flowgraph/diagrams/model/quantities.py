"""Seconds, counts, lists and layouts as the words of a sentence. Bytes are in `cluster.show_bytes`."""

from __future__ import annotations

from collections.abc import Sequence

from flowgraph.cluster.plan import Layout


def show_s(seconds: float | None) -> str:
    """Return seconds as text with three significant digits, or as whole seconds from 100 s on; "unknown" for None.

    Times below 1 s, except 0, are written in milliseconds.

    >>> show_s(123.4), show_s(12.34), show_s(0.01234), show_s(None)
    ('123 s', '12.3 s', '12.3 ms', 'unknown')
    >>> show_s(0.9997)
    '1 s'
    """
    if seconds is None:
        return "unknown"
    if seconds and seconds < 0.9995:  # what is above is rounded to 1 s
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def many(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun; without `plural`, the plural is the singular with an s.

    >>> many(1, "rank"), many(3000, "rank"), many(2, "box", "boxes")
    ('1 rank', '3,000 ranks', '2 boxes')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names joined by commas, the last by "and"; "" for no names.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def layout_text(layout: Layout) -> str:
    """Return the settings of a layout as text, separated by spaces, without degrees of 1; "one device" if none remain.

    >>> layout_text(Layout(data=2, sharding="full")), layout_text(Layout())
    ('data=2 sharding=full', 'one device')
    """
    return " ".join(part for part in str(layout).split() if not part.endswith("=1")) or "one device"
