"""Pictures for a terminal."""
