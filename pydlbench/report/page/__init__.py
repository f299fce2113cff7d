"""The HTML page of runs: one self-contained file, its figures, tables and conclusions."""
