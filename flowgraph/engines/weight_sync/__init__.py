"""Send new weights to running servers: the transports, the updates, and the checks after an update."""
