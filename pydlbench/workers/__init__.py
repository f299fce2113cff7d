"""One process per backend, so that a crash or an out-of-memory costs one row, not the run."""
