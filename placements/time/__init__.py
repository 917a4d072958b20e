"""Seconds of kernels, collectives, passes and generation, and of the transitions between phases."""
