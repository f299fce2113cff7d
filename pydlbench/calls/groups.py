"""Calls of a step that a compiler runs as one: cut out of the step, with what reads what.

A compiler joins whatever stands between two layers that libraries compute, so a group reaches from
one convolution, product or pooling to the next. The signature of a group has the signatures of its
calls in it, from which operands can be made up; what a call of the group reads of another one is
not made up, but linked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from pydlbench.calls.seen.tensorflow import LIBRARY_NODES
from pydlbench.calls.step_calls import StepCall, distinct
from pydlbench.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Sequence

    from pydlbench.records.operator import RecordedCall

_BEGIN: Final = '{"calls":['
#: What libraries compute: PyTorch's operators, without the ends that say how (a backward pass, a
#: device), ONNX's and JAX's; all others are pointwise. TensorFlow's are known by their nodes.
_LIBRARY: Final = frozenset(
    (
        *("convolution", "mm", "bmm", "addmm", "addbmm", "baddbmm", "linear", "mv", "dot"),
        *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
        *("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "mkldnn_rnn_layer"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_attention_math"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
        *("_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_grouped_mm"),
        *("Conv", "ConvTranspose", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"),
        *("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LSTM", "GRU", "RNN"),
        *("Attention", "MultiHeadAttention", "GroupQueryAttention", "Einsum", "MatMulNBits"),
        *("QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger", "DynamicQuantizeMatMul"),
        *("MatMulIntegerToFloat", "QGemm"),
        *("conv_general_dilated", "dot_general", "reduce_window_max", "reduce_window_sum"),
        *("select_and_scatter_add", "select_and_gather_add"),
    )
)
_FEED: Final = "feed "
#: The signature of an equation of JAX begins so.
EQUATION: Final = "jax."
#: An operator's name lists so many calls at the most.
_NAMED: Final = 4


class CallGroup(Record, frozen=True, kw_only=True):
    """Calls that run as one.

    Attributes:
        calls: their signatures, in an order in which they can run.
        links: operands that calls of the group have made: of which call, its how manieth tensor;
            by which call, its how manieth result.
        results: what others read: of which call, its how manieth result.
    """

    calls: tuple[str, ...]
    links: tuple[tuple[int, int, int, int], ...] = ()
    results: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        """The signature: JSON."""
        return json.dumps(msgspec.to_builtins(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> CallGroup:
        """Return the group of a signature.

        Raises:
            ValueError: it is none.
        """
        return cls.from_dict(json.loads(text))


def is_group(signature: str) -> bool:
    """Whether a signature is that of a group."""
    return signature.startswith(_BEGIN)


def feed_text(layout: str, images: Sequence[int], labels: bool) -> str:
    """Return the signature of what brings images, and labels, from the host, whatever brings them.

    Args:
        layout: ``nhwc`` or ``nchw``.
        images: their shape, NCHW.
        labels: whether there are any.
    """
    return f"{_FEED}{layout} {'x'.join(map(str, images))}{' labels' * labels}"


def is_feed(signature: str) -> bool:
    """Whether a signature is that of images that come from the host."""
    return signature.startswith(_FEED)


def runs_library(operator: str) -> bool:
    """Whether libraries compute an operator, by its name in the framework's words."""
    name = operator.rpartition(".")[2].removesuffix("_backward").removesuffix("_for_cpu")
    return name in _LIBRARY or name in LIBRARY_NODES


def cut(
    sources: Sequence[Sequence[int]], layers: Sequence[bool], sides: Sequence[Hashable]
) -> list[list[int]]:
    """Return the calls that run as one.

    A layer begins a group; any other call is in the group of the last layer that it depends on, and
    one that depends on none in that of its first reader, whatever its side.

    Args:
        sources: for each call, in an order in which they can run, the calls whose results it reads.
        layers: whether libraries compute it.
        sides: calls of different ones are never in one group: forward, loss and backward.
    """
    place: list[int | None] = []
    side_of: list[Hashable] = []
    newest: dict[Hashable, int] = {}

    def begin(side: Hashable) -> int:
        side_of.append(side)
        newest[side] = len(side_of) - 1
        return newest[side]

    for read, layer, side in zip(sources, layers, sides, strict=True):
        behind = max((group for each in read if (group := place[each]) is not None), default=None)
        if layer:
            place.append(begin(side))
        elif behind is None:  # it is where it is read first
            place.append(None)
        elif side_of[behind] == side:
            place.append(behind)
        else:
            last = newest.get(side, -1)
            place.append(last if last > behind else begin(side))
    readers: dict[int, list[int]] = {}
    for number in reversed(range(len(sources))):
        if place[number] is None:
            known = [
                group for each in readers.get(number, ()) if (group := place[each]) is not None
            ]
            place[number] = min(known) if known else begin(sides[number])
        for each in sources[number]:
            readers.setdefault(each, []).append(number)
    groups: list[list[int]] = [[] for _ in side_of]
    for number, group in enumerate(place):
        assert group is not None, "each has its place by now"
        groups[group].append(number)
    return groups


def groups_of(
    members: Sequence[StepCall], kept: Collection[tuple[int, int]]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the groups of a step: the signature of each, and the numbers of its calls.

    Args:
        members: all calls, in an order in which they can run.
        kept: results that outlive the step: by which call they were made, its how manieth.
    """
    sides = [(each.direction, each.names == ("loss",)) for each in members]
    sources = [[read[0] for read in each.reads if read is not None] for each in members]
    groups = cut(sources, [runs_library(each.operator) for each in members], sides)
    place = {call: group for group, calls in enumerate(groups) for call in calls}
    wanted = set(kept)
    wanted.update(
        read
        for number, each in enumerate(members)
        for read in each.reads
        if read is not None and place[read[0]] != place[number]
    )
    for calls in groups:
        yield _text(members, calls, wanted), calls


def grouped(
    members: Sequence[StepCall], kept: Collection[tuple[int, int]]
) -> tuple[RecordedCall, ...]:
    """Return each distinct group of a step once, in the order in which they first occur.

    Args:
        members: see :func:`groups_of`.
        kept: likewise.
    """
    wholes = []
    for text, calls in groups_of(members, kept):
        own = [members[each] for each in calls]
        wholes.append(
            StepCall(
                signature=text,
                operator=_operator([each.operator for each in own]),
                # What depends on no layer comes first, and may be on another side.
                direction=own[-1].direction,
                names=_owners(own),
                bytes=sum(each.bytes for each in own),
            )
        )
    return distinct(wholes)


def _text(members: Sequence[StepCall], calls: Sequence[int], wanted: set[tuple[int, int]]) -> str:
    inner = {call: number for number, call in enumerate(calls)}
    return CallGroup(
        calls=tuple(members[call].signature for call in calls),
        links=tuple(
            (inner[call], operand, inner[read[0]], read[1])
            for call in calls
            for operand, read in enumerate(members[call].reads)
            if read is not None and read[0] in inner
        ),
        results=tuple((inner[call], result) for call, result in sorted(wanted) if call in inner),
    ).text


def _owners(calls: Sequence[StepCall]) -> tuple[str, ...]:
    """Return what a group is a part of: of several parts the first and the last, as one."""
    names = list(dict.fromkeys(name for each in calls for name in each.names))
    return (names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}",) if names else ()


def _operator(names: Sequence[str]) -> str:
    """Return the names of a group's operators; of many that of the layer, or the first."""
    plain = [each.rpartition(".")[2] for each in names]
    if len(plain) <= _NAMED:
        return "+".join(plain)
    first = next(filter(runs_library, plain), plain[0])
    return f"{first}+{len(plain) - 1} more"
