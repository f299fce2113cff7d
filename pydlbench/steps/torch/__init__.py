"""A model's graph as a module of PyTorch, and its steps; imported by PyTorch's worker only."""
