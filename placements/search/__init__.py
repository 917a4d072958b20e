"""The search for a plan, and what changes with it: alternatives, staleness, sensitivity."""
