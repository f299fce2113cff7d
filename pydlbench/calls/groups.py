"""Calls of a recorded step, and the groups of them that a compiler fuses, with their data flow.

A compiler fuses the operators between two layers that libraries compute, so a group extends from
one convolution, product or pooling to the next. The signature of a group contains the signatures
of its calls, from which operands can be made up; an operand that another call of the group
produces is a link to that call instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from pydlbench.calls.seen.tensorflow import LIBRARY_NODES
from pydlbench.grouping import group_by
from pydlbench.records.record import Record
from pydlbench.records.trace import ProgramCall, RecordedCall, module_of

_PREFIX: Final = '{"calls":['
#: Operators that libraries compute, PyTorch's (without suffixes for a backward pass or a device),
#: ONNX's and JAX's; all others are pointwise. :data:`LIBRARY_NODES` has TensorFlow's.
_LIBRARY_OPERATORS: Final = frozenset(
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
_FEED_PREFIX: Final = "feed "
#: Prefix of the signatures of JAX's equations.
JAX_PREFIX: Final = "jax."
#: Maximum number of calls whose names make up the name of a group; a larger group is named after
#: one of its calls.
_MAX_NAMED_CALLS: Final = 4


class CallGroup(Record, frozen=True, kw_only=True):
    """Calls that a compiler fuses.

    Attributes:
        calls: signatures of the calls, in an order in which they can run.
        links: operands that calls of the group produce: reading call, index of its operand,
            producing call, index of its result.
        results: results that are read outside of the group: call, index of its result.
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
        """Parse a signature.

        Raises:
            ValueError: it is not the signature of a group.
        """
        return cls.from_dict(json.loads(text))


def is_group(signature: str) -> bool:
    """Whether a text is the signature of a group."""
    return signature.startswith(_PREFIX)


def feed_signature(layout: str, images: Sequence[int], labels: bool) -> str:
    """Return the signature of copying images, and perhaps labels, from the host.

    Args:
        layout: ``nhwc`` or ``nchw``.
        images: shape of the images, NCHW.
        labels: whether there are labels.
    """
    return f"{_FEED_PREFIX}{layout} {'x'.join(map(str, images))}{' labels' * labels}"


def is_feed(signature: str) -> bool:
    """Whether a text is the signature of copying images from the host."""
    return signature.startswith(_FEED_PREFIX)


def runs_library(operator: str) -> bool:
    """Whether libraries compute an operator of a framework."""
    name = operator.rpartition(".")[2].removesuffix("_backward").removesuffix("_for_cpu")
    return name in _LIBRARY_OPERATORS or name in LIBRARY_NODES


def partition(
    sources: Sequence[Sequence[int]], layers: Sequence[bool], sides: Sequence[Hashable]
) -> list[list[int]]:
    """Return the calls of each group.

    A layer begins a group. Another call is in the group of the last layer that it depends on; if it
    depends on none, in the group of its first reader, even on another side.

    Args:
        sources: calls whose results a call reads, for each call in an order in which they can run.
        layers: whether a library computes the call, for each call.
        sides: side of each call (forward, loss, backward); a group has calls of one side only.
    """
    group_of: list[int | None] = []
    side_of: list[Hashable] = []
    newest: dict[Hashable, int] = {}

    def begin(side: Hashable) -> int:
        side_of.append(side)
        newest[side] = len(side_of) - 1
        return newest[side]

    for read, layer, side in zip(sources, layers, sides, strict=True):
        latest = max(
            (group for source in read if (group := group_of[source]) is not None), default=None
        )
        if layer:
            group_of.append(begin(side))
        elif latest is None:  # its first reader is not known yet
            group_of.append(None)
        elif side_of[latest] == side:
            group_of.append(latest)
        else:
            last = newest.get(side, -1)
            group_of.append(last if last > latest else begin(side))
    readers: dict[int, list[int]] = {}
    for call in reversed(range(len(sources))):
        if group_of[call] is None:
            known = [
                group for reader in readers.get(call, ()) if (group := group_of[reader]) is not None
            ]
            group_of[call] = min(known) if known else begin(sides[call])
        for source in sources[call]:
            readers.setdefault(source, []).append(call)
    groups: list[list[int]] = [[] for _ in side_of]
    for call, group in enumerate(group_of):
        assert group is not None, "each call is in a group by now"
        groups[group].append(call)
    return groups


def step_groups(
    members: Sequence[StepCall], outputs: Collection[tuple[int, int]]
) -> Iterator[tuple[str, list[int]]]:
    """Yield the groups of a step: the signature of each, and the indices of its calls.

    Args:
        members: all calls, in an order in which they can run.
        outputs: results that outlive the step: call, index of its result.
    """
    sides = [(call.direction, call.names == ("loss",)) for call in members]
    sources = [[read[0] for read in call.reads if read is not None] for call in members]
    groups = partition(sources, [runs_library(call.operator) for call in members], sides)
    group_of = {call: group for group, calls in enumerate(groups) for call in calls}
    read_outside = set(outputs)
    read_outside.update(
        read
        for number, call in enumerate(members)
        for read in call.reads
        if read is not None and group_of[read[0]] != group_of[number]
    )
    for calls in groups:
        yield _signature(members, calls, read_outside), calls


def distinct_groups(
    members: Sequence[StepCall], outputs: Collection[tuple[int, int]]
) -> tuple[RecordedCall, ...]:
    """Return each distinct group of a step once, in the order of first occurrence.

    Args:
        members: all calls, in an order in which they can run.
        outputs: results that outlive the step: call, index of its result.
    """
    groups = []
    for signature, indices in step_groups(members, outputs):
        calls = [members[index] for index in indices]
        groups.append(
            StepCall(
                signature=signature,
                operator=_operator([call.operator for call in calls]),
                # Calls that depend on no layer come first, and may be on another side.
                direction=calls[-1].direction,
                names=_owners(calls),
                bytes=sum(call.bytes for call in calls),
            )
        )
    return distinct_calls(groups)


def _signature(
    members: Sequence[StepCall], calls: Sequence[int], read_outside: set[tuple[int, int]]
) -> str:
    inner = {call: number for number, call in enumerate(calls)}
    return CallGroup(
        calls=tuple(members[call].signature for call in calls),
        links=tuple(
            (inner[call], operand, inner[read[0]], read[1])
            for call in calls
            for operand, read in enumerate(members[call].reads)
            if read is not None and read[0] in inner
        ),
        results=tuple(
            (inner[call], result) for call, result in sorted(read_outside) if call in inner
        ),
    ).text


def _owners(calls: Sequence[StepCall]) -> tuple[str, ...]:
    """Return the owner of a group; several owners are one name, ``first..last``."""
    names = list(dict.fromkeys(name for call in calls for name in call.names))
    return (names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}",) if names else ()


def _operator(names: Sequence[str]) -> str:
    """Return the name of a group: all operators, or, if they are many, the layer or the first."""
    short = [name.rpartition(".")[2] for name in names]
    if len(short) <= _MAX_NAMED_CALLS:
        return "+".join(short)
    main = next(filter(runs_library, short), short[0])
    return f"{main}+{len(short) - 1} more"


# -----------------------------------------------------------------------------
# The calls of a recorded step, one by one, as any framework records them.


class StepCall(RecordedCall, frozen=True, kw_only=True):
    """One call of a step.

    Attributes:
        reads: index of the call that produced an operand, and index among the results of that
            call, for each operand; None for a tensor from before the step. Empty if not recorded.
    """

    reads: tuple[tuple[int, int] | None, ...] = ()

    @property
    def program_call(self) -> ProgramCall:
        """The call as a call of a traced step."""
        return ProgramCall(
            operator=self.operator,
            module=module_of(self.names, self.direction),
            direction=self.direction,
            signature=self.signature,
            bytes=self.bytes,
        )


def distinct_calls(calls: Iterable[StepCall]) -> tuple[RecordedCall, ...]:
    """Return each distinct call once, in the order of first occurrence."""
    recorded = []
    for same in group_by(calls, lambda call: (call.signature, call.direction)).values():
        first = same[0]
        profiled = [call.profiled for call in same if call.profiled is not None]
        recorded.append(
            RecordedCall.from_owners(
                [call.names for call in same],
                signature=first.signature,
                operator=first.operator,
                direction=first.direction,
                bytes=first.bytes,
                profiled=sum(profiled) if profiled else None,
                trained=first.trained,
            )
        )
    return tuple(recorded)


# -----------------------------------------------------------------------------
# Groups of calls that a compiler runs as one, as functions of their operands.


class LinkedCalls:
    """A group of calls as one function; a call reads operands or results of earlier calls.

    Args:
        group: links between the group's calls, and the group's results.
        calls: functions of the calls, which return lists of results.
        places: for each call, positions of its operands among the operands that links refer to.
    """

    def __init__(
        self,
        group: CallGroup,
        calls: Sequence[Callable[..., list[Any]]],
        places: Sequence[Sequence[int]],
    ) -> None:
        self._calls, self._results = calls, group.results
        links = {(call, operand): (source, result) for call, operand, source, result in group.links}
        self._sources = [
            [links.get((number, place)) for place in positions]
            for number, positions in enumerate(places)
        ]

    def unlinked(self, operands: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the operands of all calls that are not results of other calls.

        Args:
            operands: all operands, by call.
        """
        return [
            operand
            for sources, items in zip(self._sources, operands, strict=True)
            for source, operand in zip(sources, items, strict=True)
            if source is None
        ]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the results of the group, given its unlinked operands."""
        given, results = iter(operands), list[list[Any]]()
        for call, sources in zip(self._calls, self._sources, strict=True):
            read = [
                next(given) if source is None else results[source[0]][source[1]]
                for source in sources
            ]
            results.append(call(*read))
        return [results[call][result] for call, result in self._results]
