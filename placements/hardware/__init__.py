"""Devices, what connects them, and the constants of engines, with their sources."""
