"""The commands, one file each: read the options, call the application, and print the result."""
