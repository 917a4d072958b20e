"""Write graphs and programs as text and JSON, and read them from JSON."""
