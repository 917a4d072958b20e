"""Flows, plans and runs as pictures, pages and text."""
