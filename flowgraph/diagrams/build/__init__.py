"""Pictures of flows, plans, programs and runs."""
