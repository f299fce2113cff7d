"""Steps in PyTorch: built, run, recorded, traced and replayed."""
