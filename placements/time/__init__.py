"""Seconds of kernels, collectives, passes, generation and what lies between phases."""
