"""One table of ops, by family, and layers, which are problems of an op with given sizes.

An op has fields (and with them a descriptor), tensors by role, passes with their FLOPs and least
bytes, and a reference in float64. It is independent of devices and libraries.
"""
