"""Steps in TensorFlow: built, run, recorded and traced."""
