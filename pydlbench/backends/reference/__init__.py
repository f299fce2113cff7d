"""The NumPy float64 reference: seeded inputs, and a verdict on what a kernel made of them.

Every element of a result is covered by a checksum with random weights, and randomly chosen
elements (all of them where that is cheap) are recomputed exactly. Both take one pass over the
tensors, without copying a large one, so a layer of hundreds of megabytes is checked in about a
second.
"""

from __future__ import annotations

from pydlbench.backends.reference.check import Verdict, verify
from pydlbench.backends.reference.inputs import make_inputs
from pydlbench.backends.reference.rounding import round_to
from pydlbench.backends.reference.shapes import tensor_shapes
from pydlbench.backends.reference.tolerance import tolerance

__all__ = ["Verdict", "make_inputs", "round_to", "tensor_shapes", "tolerance", "verify"]
