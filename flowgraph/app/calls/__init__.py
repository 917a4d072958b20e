"""The Python API: the functions that `flowgraph` and `flowgraph.app` offer, with their arguments."""
