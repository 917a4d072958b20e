"""Read files safely, with bounds on size and depth; hash files; find the folder of the shipped flows."""
