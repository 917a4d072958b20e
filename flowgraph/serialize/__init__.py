"""Graphs and programs as text and JSON, out and in."""
