"""NeMo RL: the keys of its version, its configurations written from plans, and what it runs of them."""
