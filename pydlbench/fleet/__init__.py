"""The same sweep on many machines, on an existing engine; which of them is slow, and why."""
