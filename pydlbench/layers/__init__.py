"""What is timed: convolutions, products, poolings and memory-bound layers, by shape alone.

A layer knows its FLOPs and the least bytes it must move, per pass; nothing here knows a device or
a library.
"""
