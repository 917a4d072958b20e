"""Clusters, plans and calibrations as data, without the planner."""
