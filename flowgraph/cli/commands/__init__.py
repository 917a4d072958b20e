"""The commands, a file each: it reads the options, calls the application and prints what comes back."""
