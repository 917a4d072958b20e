"""From a request to a plan: its inputs, the planning problem, the search, and what a plan's file says."""
