"""Search results, plans and timelines as text and as data of charts."""
