"""The solver: divide roles into blocks and choose an option for each, given numbers only (no graphs, no engines)."""
