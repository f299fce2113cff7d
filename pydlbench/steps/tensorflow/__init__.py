"""A model's graph as functions of TensorFlow; imported by TensorFlow's worker only."""
