"""Running a program: the driver, the interpreter, the places where tasks run, and the files that a run writes."""
