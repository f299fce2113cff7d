"""Real steps of whole models in PyTorch and TensorFlow, from the same graph that is composed."""
