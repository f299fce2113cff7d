"""PyTorch's operators as its users call them, eager and compiled; imported by its worker only."""
