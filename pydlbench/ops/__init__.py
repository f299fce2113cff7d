"""What is computed: one table of ops, by family, and the problems of them that are timed.

An op knows its fields (and with them its descriptor), its tensors by role, its passes with their
FLOPs and least bytes, and a reference in float64; nothing here knows a device or a library.
"""
