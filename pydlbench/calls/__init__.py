"""The meaning of recorded calls of frameworks and libraries: layers, FLOPs and bytes."""
