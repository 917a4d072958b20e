"""Fit constants and scales of forecasts to measured seconds."""
