"""A program on Ray: an actor for each device, watched over, with weights and code brought to them."""
