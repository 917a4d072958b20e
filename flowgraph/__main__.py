"""`python -m flowgraph` is the command line."""

from flowgraph.cli import main

if __name__ == "__main__":
    main()
