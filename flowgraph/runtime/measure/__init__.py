"""What a run measures: tasks, steps, profiles, and the file that keeps them."""
