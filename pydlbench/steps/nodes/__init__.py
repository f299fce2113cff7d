"""What is known of the nodes of TensorFlow's graphs without TensorFlow: their text, their work."""
