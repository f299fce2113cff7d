"""What published benchmark scripts print: their format strings, and lines that they printed."""
