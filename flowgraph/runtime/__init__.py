"""What runs a program: the driver, the interpreter, its places, and what a run writes."""
