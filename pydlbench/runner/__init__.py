"""Measuring: sessions with their workers, and kernels timed alone or interleaved."""
