"""A run's folder: its files, its checkpoints, and the facts that decide whether a run can be resumed."""
