"""TensorFlow: the same layers through ``tf.function``, as a graph and compiled by XLA."""
