"""Published benchmarks: what is inside their number, how often they step, what they print."""
