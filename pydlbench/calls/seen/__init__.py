"""Parsers of recorded calls, one per framework or library; see :mod:`pydlbench.calls.meaning`."""

from pydlbench.calls.meaning import Meaning
from pydlbench.calls.seen import aten, onednn, onnx, tensorflow
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.trace import RecordedCall


def meaning_of(recorded: RecordedCall) -> Meaning:
    """Return the meaning of a recorded call of any framework or library.

    Args:
        recorded: recorded call; the ``bytes`` of a PyTorch call give the size of its results.
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
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # The rule is for the operands of another version of the framework.
        return Meaning.unknown(f"{recorded.operator}: no rule for these operands")
