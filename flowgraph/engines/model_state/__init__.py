"""What engines on torch share about a model: its optimizers, its rules, its state on disk."""
