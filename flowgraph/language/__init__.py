"""The language: values, nodes, losses and flows, the graph that they make, and the laws of one call."""
