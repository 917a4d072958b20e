"""A layout in the few words that a label has room for."""

from __future__ import annotations

from flowgraph.cluster.plan import Layout


def layout_text(layout: Layout) -> str:
    """Write the ways in which a layout splits a model, those alone.

    >>> layout_text(Layout(data=2, sharding="full")), layout_text(Layout())
    ('data=2 sharding=full', 'one device')
    """
    said = " ".join(part for part in str(layout).split() if not part.endswith("=1"))
    return said or "one device"
