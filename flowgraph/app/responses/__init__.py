"""Responses of a model: sample them, write them to a file, score them."""
