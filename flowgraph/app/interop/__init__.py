"""Plans for verl, OpenRLHF and NeMo RL, and their commands read as plans."""
