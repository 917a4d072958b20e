"""What is read from a graph alone: facts, roles, carried state, the order of nodes, its flat form and hashes."""
