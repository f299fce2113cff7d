"""Layers in TensorFlow: one pass of one layer as a kernel that can be timed."""
