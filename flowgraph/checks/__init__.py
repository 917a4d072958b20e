"""The laws, by the stage of a graph that each is about: one table, and the functions that hold them."""
