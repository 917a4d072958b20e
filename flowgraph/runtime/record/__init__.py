"""A run's folder: what is written there, checkpoints, and what says whether a run can go on."""
