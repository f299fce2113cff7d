"""What a framework's backend gives for a case: ways to run it, each with its operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Operator", "Variant"]


class Operator(Protocol):
    """A framework's operator, built and compiled, with its operands in place."""

    def call(self) -> Any:
        """Run it once, as a user's line of code would, its outputs' allocation included.

        Whatever it returns is dropped by the caller at once, as in a loop of a user's.
        """

    def wait(self) -> None:
        """Return when everything that was called is done; costs nothing where calls are."""

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once and return what it wrote, by role, as float32 in plain layouts.

        An image is NCHW, convolution weights are ``(out channels, in channels / groups, kernel
        height, kernel width)``, matrices are ``(batch, rows, columns)``. The main result comes
        first.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which a framework can run a case; the fastest that is right becomes the row.

    Attributes:
        algorithm: what is called, in the framework's words: ``aten::convolution``; with the kernel
            behind it where that is known.
        layout: the layouts of its operands: ``src nhwc, weights ohwi, dst nhwc``.
        variant: ``nchw`` or ``nhwc`` for images, ``plain`` or ``transposed`` for weights of
            products; ``--layout`` chooses by it.
        build: makes the operator from inputs by role (plain float32 arrays, already rounded to the
            storage precision). Compiles and runs it once: what that takes is set-up time.
        accumulate: format of the sums of products.
        bias_accumulate: of the sums of a bias's gradient beside them.
        notes: what a reader has to know: an approximation, a fallback.
    """

    algorithm: str
    layout: str
    variant: str
    build: Callable[[dict[str, NDArray[Any]]], Operator]
    accumulate: str = "float32"
    bias_accumulate: str = "float32"
    notes: tuple[str, ...] = field(default=())
