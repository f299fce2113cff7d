"""The store: every run with all that is needed to trust it, in one SQLite file."""
