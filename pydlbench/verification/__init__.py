"""The NumPy float64 reference: seeded inputs, and the verdict on a kernel's results.

A checksum with random weights covers every element of a result, and randomly chosen elements (all
of them if that is cheap) are recomputed exactly. Both take one pass over the tensors, without
copying a large one, so that a layer of hundreds of megabytes is checked in about a second.
"""
