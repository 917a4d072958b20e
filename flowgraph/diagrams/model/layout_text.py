"""A layout as short text for a label."""

from __future__ import annotations

from flowgraph.cluster.plan import Layout


def layout_text(layout: Layout) -> str:
    """Return the dimensions in which a layout splits a model.

    >>> layout_text(Layout(data=2, sharding="full")), layout_text(Layout())
    ('data=2 sharding=full', 'one device')
    """
    return " ".join(part for part in str(layout).split() if not part.endswith("=1")) or "one device"
