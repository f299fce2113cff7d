"""Matrix multiplication and inner product (fully connected layer): FLOPs and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pydlbench.layers.checks import PASSES, check_pass, check_total, set_integers

__all__ = ["Gemm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``batch_count`` independent products, without bias.

    forward: ``dst[m, n] = src[m, k] @ weights[k, n]``; backward-data:
    ``src_gradient[m, k] = dst_gradient[m, n] @ weights.T``; backward-weights:
    ``weights_gradient[k, n] = src.T @ dst_gradient``. A fully connected layer has the minibatch as
    its rows ``m``.

    Raises:
        UsageError: A size below one, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "gemm"
    passes: ClassVar[tuple[str, ...]] = PASSES

    m: int
    k: int
    n: int
    batch_count: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every size."""
        set_integers(self, 1, "m", "k", "n", "batch_count")
        check_total(**self._elements())

    @property
    def batch(self) -> int:
        """The minibatch, which is the rows of the source."""
        return self.m

    @property
    def weight_elements(self) -> int:
        """Elements of the weight matrix (of all ``batch_count`` of them)."""
        return self.batch_count * self.k * self.n

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``128x9216:9216x4096``, ``3x128x64:3x64x32`` for three."""
        count = f"{self.batch_count}x" if self.batch_count > 1 else ""
        return f"{count}{self.m}x{self.k}:{count}{self.k}x{self.n}"

    def with_batch(self, batch: int) -> Self:
        """Return the same product for another number of source rows."""
        return replace(self, m=batch)

    def flops(self, pass_: str) -> int:
        """Return the FLOPs, two per multiply-add; the three passes need the same number."""
        check_pass(pass_, self.passes, self.kind)
        return 2 * self.batch_count * self.m * self.k * self.n

    def flops_executed(self, pass_: str) -> int:
        """Return the same as :meth:`flops`: there is no padding to leave out."""
        return self.flops(pass_)

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: two matrices read once and the third written once."""
        check_pass(pass_, self.passes, self.kind)
        return itemsize * sum(self._elements().values())

    def operands(self, pass_: str) -> dict[str, int]:
        """Return the elements of each matrix by role; gradients go by the same names."""
        check_pass(pass_, self.passes, self.kind)
        return self._elements()

    def _elements(self) -> dict[str, int]:
        return {
            "src": self.batch_count * self.m * self.k,
            "weights": self.weight_elements,
            "dst": self.batch_count * self.m * self.n,
        }
