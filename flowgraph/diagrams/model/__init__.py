"""Pictures as data, and the words and numbers on them."""
