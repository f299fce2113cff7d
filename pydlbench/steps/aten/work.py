"""What the recorded calls of a PyTorch step compute: our layers, their FLOPs, the least bytes.

:func:`work_of` reads the signature of one call. Nothing is measured, and PyTorch is not imported.
What no rule knows is None with the reason, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError
from pydlbench.steps.aten import attention, elementwise, moves, products, reductions, windows
from pydlbench.steps.aten.call import Call, Found, least_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydlbench.models.work import Work
    from pydlbench.records.operator import RecordedCall

_RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **products.RULES,
    **windows.RULES,
    **attention.RULES,
    **elementwise.RULES,
    **reductions.RULES,
    **moves.RULES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWork:
    """What one call computes, as often as it is made once.

    A call that makes no kernel run (a view, memory without values) is of kind ``view``: it has
    neither layers nor a reason for that, and no FLOPs and no bytes.

    Attributes:
        kind: ``product``, ``convolution``, ``attention``, ``recurrent``, ``pooling``, ``resize``,
            ``normalisation``, ``softmax``, ``activation``, ``elementwise``, ``reduction``,
            ``update`` (a whole optimizer's), ``loss``, ``gather``, ``copy``, ``random``, ``view``
            or ``other``.
        layers: our layers and passes that compute the same one after the other; a layer may be
            there several times. Their nodes are the first name of the call, and their layers have
            no name.
        layers_missing: why there are none; None where there are, or need not be.
        flops: algorithmic ones, with padding counted, as layers count them: two for a multiply-add,
            one for each other operation. Of a causal attention those of the pairs of a query and a
            key that count, which its layers, and PyTorch's counter, do not know.
        product_flops: of these, those of products and convolutions, which publications and
            PyTorch's counter count; None where ``flops`` is.
        flops_missing: why there is no number.
        bytes: least bytes moved: each operand that is read, once, and each result; None where the
            sizes of its results are not recorded.
        note: what a reader of the numbers must know; None mostly.
        dtypes: the type in which it is computed, by PyTorch's name (``bfloat16``): that of its
            operands, whatever the step's precision is; several where they are mixed.
    """

    kind: str
    layers: tuple[Work, ...] = ()
    layers_missing: str | None = None
    flops: int | None = None
    product_flops: int | None = None
    flops_missing: str | None = None
    bytes: int | None = None
    note: str | None = None
    dtypes: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Found, size: int | None, dtypes: tuple[str, ...]) -> CallWork:
        """Return what a rule has found.

        Args:
            found: by the rule.
            size: least bytes moved; None where results have no recorded size.
            dtypes: the type in which it is computed.
        """
        return cls(
            kind=found.kind,
            layers=found.work,
            layers_missing=found.lacks or None,
            flops=found.flops,
            product_flops=None if found.flops is None else found.product_flops,
            flops_missing=found.unknown or None,
            bytes=size,
            note=found.note,
            dtypes=dtypes,
        )

    @classmethod
    def unknown(cls, why: str) -> CallWork:
        """Return what is known of a call that no rule knows: the reason."""
        return cls(kind="other", layers_missing=why, flops_missing=why)


def work_of(recorded: RecordedCall) -> CallWork:
    """Return what a recorded call computes.

    The pass of a layer follows from the call: ``convolution_backward`` says by its mask which
    gradients it gives. A product of a backward pass is the gradient of weights where its left
    operand lies transposed, and else that of data.

    Args:
        recorded: a call of PyTorch's; of another framework's there is nothing known. Its ``bytes``
            say how large results are.
    """
    try:
        call = Call(recorded)
        found = _found(call)
        read = least_bytes(call.tensors) if found.read is None else found.read
    except UnsupportedError as error:
        return CallWork.unknown(str(error))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        # Other arguments than the rule was written for: another overload, or another PyTorch.
        return CallWork.unknown(f"{recorded.operator}: no rule for these arguments: {error}")
    written = call.results if found.written is None else found.written
    size = None if written is None else read + written
    return CallWork.of(found, size, call.dtypes(found.typed))


def _found(call: Call) -> Found:
    rule = _RULES.get(call.operator)
    if rule is None:
        raise UnsupportedError(f"{call.operator}: no rule for this operator")
    if any(one.dtype.startswith("complex") for one in call.tensors):
        raise UnsupportedError(f"{call.operator}: no rule for complex numbers")
    return rule(call)
