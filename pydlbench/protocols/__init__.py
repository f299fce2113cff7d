"""Published benchmark scripts: contents of their numbers, counts of steps, and printed lines."""
