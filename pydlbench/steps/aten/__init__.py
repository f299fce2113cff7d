"""What PyTorch's operators compute, read from the text of their calls; PyTorch is not imported."""
