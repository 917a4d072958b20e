"""Pictures as SVG, Mermaid, DOT, JSON, pages and text for a terminal."""
