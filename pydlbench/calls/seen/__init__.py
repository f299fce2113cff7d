"""How frameworks' recorded calls read: attributes only; see :mod:`pydlbench.calls.meaning`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.calls.meaning import Meaning
from pydlbench.calls.seen import aten, onednn, onnx, tensorflow
from pydlbench.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from pydlbench.records.operator import RecordedCall


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return what a recorded call computes, of whichever framework or library it is.

    Args:
        recorded: the call. Of one of PyTorch's, its ``bytes`` say how large results are.
    """
    signature = recorded.signature
    try:
        if tensorflow.is_node(signature):
            return tensorflow.meaning_of(recorded)
        if onnx.is_node(signature):
            return onnx.meaning_of(recorded)
        if onednn.is_logged(signature):
            return onednn.meaning_of(recorded)
        return aten.meaning_of(recorded)
    except (UnsupportedError, UsageError) as error:
        return Meaning.unknown(str(error))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Other operands than the rule was written for: another version of the framework.
        return Meaning.unknown(f"{recorded.operator}: no rule for these operands: {error}")
