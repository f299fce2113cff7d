"""What recorded calls of frameworks and libraries mean: layers, FLOPs and bytes."""
