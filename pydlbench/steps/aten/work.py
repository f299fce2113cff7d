"""What the recorded calls of a PyTorch step compute: our layers, their FLOPs, the least bytes.

:func:`work_of` reads the signature of one call, :func:`coverage` sums a step's. Nothing is
measured, and PyTorch is not imported. What no rule knows is None with the reason, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UnsupportedError
from pydlbench.steps.aten import attention, elementwise, moves, products, windows
from pydlbench.steps.aten.call import Call, Found, least_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pydlbench.models.work import Work
    from pydlbench.records.operator import RecordedCall

__all__ = ["CallWork", "Coverage", "Unmapped", "coverage", "work_of"]

_RULES: Final[Mapping[str, Callable[[Call], Found]]] = {
    **products.RULES,
    **windows.RULES,
    **attention.RULES,
    **elementwise.RULES,
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
        bytes: least bytes moved: each operand that is read, once, and each result.
        bytes_missing: why there is no number.
        note: what a reader of the numbers must know; None mostly.
    """

    kind: str
    layers: tuple[Work, ...] = ()
    layers_missing: str | None = None
    flops: int | None = None
    product_flops: int | None = None
    flops_missing: str | None = None
    bytes: int | None = None
    bytes_missing: str | None = None
    note: str | None = None


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
        return _unknown(str(error))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        # Other arguments than the rule was written for: another overload, or another PyTorch.
        return _unknown(f"{recorded.operator}: no rule for these arguments: {error}")
    written = call.results if found.written is None else found.written
    return CallWork(
        kind=found.kind,
        layers=found.work,
        layers_missing=found.lacks or None,
        flops=found.flops,
        product_flops=None if found.flops is None else found.product_flops,
        flops_missing=found.unknown or None,
        bytes=None if written is None else read + written,
        bytes_missing="the sizes of its results are not recorded" if written is None else None,
        note=found.note,
    )


def _found(call: Call) -> Found:
    rule = _RULES.get(call.operator)
    if rule is None:
        raise UnsupportedError(f"{call.operator}: no rule for this operator")
    if any(one.dtype.startswith("complex") for one in call.tensors):
        raise UnsupportedError(f"{call.operator}: no rule for complex numbers")
    return rule(call)


def _unknown(why: str) -> CallWork:
    return CallWork(kind="other", layers_missing=why, flops_missing=why, bytes_missing=why)


# -----------------------------------------------------------------------------
# How much of a step is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmapped:
    """An operator without a layer.

    Attributes:
        operator: its name.
        reason: why.
        calls: of the step.
        bytes: of their operands and results.
        flops: None where they are not known.
    """

    operator: str
    reason: str
    calls: int
    bytes: int
    flops: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of a step's calls has layers of ours, and a formula for FLOPs.

    Views are left out of all shares; they run no kernel. Bytes are those of all operands and
    results, which are known of each call.

    Attributes:
        calls: that run a kernel.
        views: that run none.
        flops: of all calls that have a formula.
        native_calls: share of the calls that have layers.
        native_bytes: share of their bytes.
        native_flops: share of the FLOPs that are known.
        unknown_calls: share of the calls without a formula for FLOPs.
        unknown_bytes: share of their bytes.
        unmapped: operators without a layer, most bytes first.
    """

    calls: int
    views: int
    flops: int
    native_calls: float
    native_bytes: float
    native_flops: float
    unknown_calls: float
    unknown_bytes: float
    unmapped: tuple[Unmapped, ...]


def coverage(calls: Iterable[RecordedCall]) -> Coverage:
    """Return how much of a step is known, from its distinct calls with their counts."""
    known = [(one, work_of(one)) for one in calls]
    views = sum(one.count for one, found in known if found.kind == "view")
    known = [(one, found) for one, found in known if found.kind != "view"]
    native = [(one, found) for one, found in known if found.layers]
    unknown = [one for one, found in known if found.flops is None]

    def number(which: Iterable[RecordedCall]) -> int:
        return sum(one.count for one in which)

    def size(which: Iterable[RecordedCall]) -> int:
        return sum(one.count * one.bytes for one in which)

    def flops(which: Iterable[tuple[RecordedCall, CallWork]]) -> int:
        return sum(one.count * (found.flops or 0) for one, found in which)

    of_all, of_native = [one for one, _ in known], [one for one, _ in native]
    return Coverage(
        calls=number(of_all),
        views=views,
        flops=flops(known),
        native_calls=_share(number(of_native), number(of_all)),
        native_bytes=_share(size(of_native), size(of_all)),
        native_flops=_share(flops(native), flops(known)),
        unknown_calls=_share(number(unknown), number(of_all)),
        unknown_bytes=_share(size(unknown), size(of_all)),
        unmapped=_unmapped(known),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _unmapped(known: Iterable[tuple[RecordedCall, CallWork]]) -> tuple[Unmapped, ...]:
    found: dict[tuple[str, str], Unmapped] = {}
    for call, work in known:
        if work.layers_missing is None:
            continue
        key = call.operator, work.layers_missing
        before = found.get(key, Unmapped(operator=key[0], reason=key[1], calls=0, bytes=0, flops=0))
        unknown = work.flops is None or before.flops is None
        found[key] = Unmapped(
            operator=key[0],
            reason=key[1],
            calls=before.calls + call.count,
            bytes=before.bytes + call.count * call.bytes,
            flops=None if unknown else (before.flops or 0) + call.count * (work.flops or 0),
        )
    return tuple(sorted(found.values(), key=lambda one: -one.bytes))
