"""Measurements of a run: tasks, steps, profiles, and the file that contains them."""
