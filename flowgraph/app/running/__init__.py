"""Training runs: checked, started, resumed, recorded, and read again."""
