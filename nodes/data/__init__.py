"""Data sets: rows in verl's schema, their files, the seeded tasks, and the order in which a run reads them."""
