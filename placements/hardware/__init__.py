"""Devices, the links between them, and the constants of engines, with their sources."""
