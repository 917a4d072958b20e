"""Pictures as Mermaid text."""
