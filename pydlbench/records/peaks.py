"""Compute peaks of a device in a precision, for a step's model FLOPs utilisation."""

from __future__ import annotations

from pydlbench.records.measurement import Precision
from pydlbench.records.record import Record


class DevicePeaks(Record, frozen=True, kw_only=True):
    """Compute peaks of a device in a precision, in FLOP/s; a multiply-add is two FLOPs.

    The model FLOPs utilisation of a step is its FLOP/s over ``theoretical``, as publications have
    it, or over ``measured``, which a kernel can reach.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        name: name of the CPU or GPU.
        precision: one of ``pydlbench.words.PRECISIONS``.
        threads: threads of a CPU's probe; null on a GPU.
        measured: best result of the probe, at ``clock_hz``; on a CPU this includes results of
            earlier runs that a try of this run confirms.
        theoretical: peak of all units at ``clock_hz``; null where they are not known.
        nominal: peak at the nominal clock; null where that is not known.
        clock_hz: core clock during the probe.
        derivation: derivation of ``theoretical``, in words.
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
