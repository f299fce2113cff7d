"""One run and what belongs to it: settings, workers, devices, memory, the measuring of a case."""
