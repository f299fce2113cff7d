"""A model's graph as functions of JAX; imported by JAX's worker only."""
