"""New weights for running servers: the transports, the updates, and the checks after one."""
