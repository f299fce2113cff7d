"""The peaks of a device in a precision, for shares of them: MFU."""

from __future__ import annotations

from pydlbench.records.record import Record
from pydlbench.records.specs import Precision


class DevicePeaks(Record, frozen=True, kw_only=True):
    """What a device can do in a precision. FLOP/s; a multiply-add is two.

    The model FLOPs utilisation of a step is its FLOPs over its seconds and one of these: over
    ``theoretical`` as publications have it, over ``measured`` as the share of what a kernel can
    reach.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        name: of the CPU or GPU.
        precision: one of ``pydlbench.words.PRECISIONS``.
        threads: of a CPU's probe; null on a GPU.
        measured: by the best of the probe's tries, at ``clock_hz``; of a CPU those of earlier runs
            that a try of this one confirms count, too.
        theoretical: what all units do at ``clock_hz``; null where they are not known.
        nominal: the same at the clock that the maker names; null where that is not known.
        clock_hz: core clock during the probe.
        derivation: of ``theoretical``, in words.
        kernel: the probe's instruction, or the product that a GPU's library computed.
    """

    device: str
    name: str
    precision: Precision
    threads: int | None = None
    measured: float
    theoretical: float | None = None
    nominal: float | None = None
    clock_hz: float
    derivation: str | None = None
    kernel: str | None = None

    derived = ("tflops",)

    @property
    def tflops(self) -> float:
        """The measured peak in TFLOP/s."""
        return self.measured / 1e12
