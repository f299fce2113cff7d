"""The NumPy float64 reference: seeded inputs, and a verdict on what a kernel made of them.

Every element of a result is covered by a checksum with random weights, and randomly chosen
elements (all of them where that is cheap) are recomputed exactly. Both take one pass over the
tensors, without copying a large one, so a layer of hundreds of megabytes is checked in about a
second.
"""
