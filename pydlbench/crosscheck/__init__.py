"""The cross-check: isolated parts summed into a prediction, and the step explained term by term.

``check`` predicts a framework's step from its parts, runs it, and names what lies between the
hardware's roof and the measured time. The prediction of a round is stored before its step runs.
"""

from __future__ import annotations

from pydlbench.crosscheck.native import NativeSum, measure_native
from pydlbench.crosscheck.record import CheckRecord, LedgerTerm, PieceRow, RoundRow
from pydlbench.crosscheck.run import check

__all__ = [
    "CheckRecord",
    "LedgerTerm",
    "NativeSum",
    "PieceRow",
    "RoundRow",
    "check",
    "measure_native",
]
