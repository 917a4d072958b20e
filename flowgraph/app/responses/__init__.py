"""Responses of a model: sampled, written to a file, scored."""
