"""Clusters, plans and calibrations as data: they import errors, files and pydantic only."""
