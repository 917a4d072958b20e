"""Run a program on Ray: an actor for each device, its supervision, and the transport of weights and code to it."""
