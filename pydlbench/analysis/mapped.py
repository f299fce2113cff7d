"""The operators of a step, and the native layers that correspond to recorded calls."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pydlbench.analysis.estimate import (
    EstimateKernels,
    EstimatePlan,
    EstimateTerm,
    sharing_kernels,
    terms_of,
)
from pydlbench.backends.steps import requests
from pydlbench.calls.groups import (
    JAX_PREFIX,
    CallGroup,
    feed_signature,
    is_feed,
    is_group,
    runs_library,
)
from pydlbench.calls.meaning import Meaning
from pydlbench.calls.seen import meaning_of
from pydlbench.calls.seen.tensorflow import TensorFlowNode, is_node
from pydlbench.grouping import group_by
from pydlbench.models import build_model
from pydlbench.models.passes import StepPass
from pydlbench.ops.table import out_of_place
from pydlbench.records.estimate import Recorded
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall, operator_of
from pydlbench.runner.session import Session
from pydlbench.timing.statistics import sum_known
from pydlbench.words import CPU_LAYER_PRECISIONS, FRAMEWORK_MODES, GPU_PRECISIONS, ONNX_FRAMEWORK

#: The module of calls outside of any module.
MODEL: Final = "(model)"
# The kind of calls without native layers on a GPU: on an H200 products and softmax take 2.4 to 2.7
# times as long as PyTorch's fused kernels.
_ATTENTION: Final = "attention"
_NOT_FUSED: Final = "there is no native kernel of a whole attention for GPUs"
# Part of a signature on a GPU if an operand or the result is in the host's memory.
_HOST: Final = "'cpu'"
_TO_HOST: Final = "a copy to or from the host's memory has no layer"
# Modules may have fractions of calls.
_ROUNDING: Final = 1e-6
#: The precisions with elements of a dtype, by PyTorch's name; those of tensor cores first, as
#: frameworks use them wherever they can.
_PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "float32": ("fp32", "tf32"),
    "bfloat16": ("bf16-tc", "bf16"),
    "float16": ("fp16-tc", "fp16"),
    "float8_e4m3fn": ("fp8-tc",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedCall:
    """A recorded call with its native layers.

    Attributes:
        count: number of such calls in a step.
        meaning: meaning of the call.
        terms: the native kernels of one execution; empty if no layer corresponds to it.
        lacks: why a layer is missing; empty if no layer is missing.
    """

    count: int
    meaning: Meaning
    terms: tuple[EstimateTerm, ...]
    lacks: str = ""

    def writes_elsewhere(self, operator: str) -> bool:
        """Whether a call overwrites an operand that it reads, and its native layers do not."""
        reads = operator.endswith("_") and self.meaning.kind not in ("copy", "view")
        specs = [term.hot for term in self.terms]
        updates = any(spec.layer.entry.passes[spec.pass_].updates for spec in specs)
        return reads and not updates


def map_calls(
    calls: Iterable[RecordedCall], phase: str, precision: str, device: str, cache_bytes: int | None
) -> dict[tuple[str, str], MappedCall]:
    """Return the native layers of each call, by signature and direction.

    Args:
        calls: the recorded calls; a group has the layers of its calls.
        phase: phase of the step: in a forward phase alone no layer has to keep tensors.
        precision: precision of the step; a call whose operands have another dtype (because autocast
            left them alone, say) has layers in its own precision.
        device: the device of the calls.
        cache_bytes: see :func:`~pydlbench.analysis.estimate.plan_step`.
    """
    propagation = "inference" if phase == "forward" else "training"

    def mapped(call: RecordedCall) -> MappedCall:
        meaning = _meaning(call)
        own = _precision(meaning.dtypes, precision, device)
        layers = [
            StepPass(
                node=(*call.names, "")[0],
                # Native kernels of GPUs do not work in place.
                layer=each.layer if device == "cpu" else out_of_place(each.layer),
                pass_=each.pass_,
                # A batch normalisation itself specifies the statistics that it uses.
                propagation=each.propagation
                if getattr(each.layer, "op", None) == "batchnorm"
                else propagation,
            )
            for each in meaning.layers
        ]
        lacks = meaning.layers_missing or ""
        if layers and own is None:
            lacks = f"computed in {' and '.join(meaning.dtypes)}, in which there is no layer"
        if device != "cpu" and meaning.kind == _ATTENTION:
            own, lacks = None, lacks or _NOT_FUSED
        if device != "cpu" and meaning.kind == "copy" and _HOST in call.signature:
            own, lacks = None, lacks or _TO_HOST
        return MappedCall(
            count=call.count,
            meaning=meaning,
            terms=terms_of(layers, own, device, cache_bytes) if own is not None else (),
            lacks=lacks,
        )

    return {
        (call.signature, call.direction): _merge(call.count, list(map(mapped, _calls_in(call))))
        for call in calls
    }


def _calls_in(call: RecordedCall) -> list[RecordedCall]:
    """Return the calls of a group; a single call itself."""
    if not is_group(call.signature):
        return [call]
    return [
        RecordedCall(
            signature=text,
            operator=operator_of(text),
            direction=call.direction,
            names=call.names,
        )
        for text in CallGroup.read(call.signature).calls
    ]


def _merge(count: int, parts: Sequence[MappedCall]) -> MappedCall:
    """Return the layers of calls that run as one group."""
    if len(parts) == 1:
        return parts[0] if parts[0].count == count else dataclasses.replace(parts[0], count=count)
    own = [part for part in parts if part.meaning.kind != "view"]
    kinds = {each.meaning.kind for each in own}
    lacks = [each.lacks for each in own if each.lacks]
    return MappedCall(
        count=count,
        meaning=Meaning(
            kind=next(iter(kinds)) if len(kinds) == 1 else "group" if kinds else "view",
            layers=tuple(layer for each in own for layer in each.meaning.layers),
            layers_missing="; ".join(dict.fromkeys(lacks)) or None,
            flops=sum_known(each.meaning.flops for each in own),
            product_flops=sum_known(each.meaning.product_flops for each in own),
            dtypes=tuple(dict.fromkeys(kind for each in own for kind in each.meaning.dtypes)),
        ),
        terms=tuple(term for each in own for term in each.terms),
        lacks="; ".join(dict.fromkeys(lacks)),
    )


def _meaning(call: RecordedCall) -> Meaning:
    """Return the meaning of a call of any framework."""
    if call.signature.startswith(JAX_PREFIX):
        return Meaning.unknown("equations of JAX are read by no rule so far")
    return meaning_of(call)


def _precision(dtypes: Sequence[str], precision: str, device: str) -> str | None:
    """Return the precision in which a call is computed; None if there is no such precision.

    Args:
        dtypes: dtypes of the call; several dtypes have no precision.
        precision: precision of the step, which the call has too if its dtype fits.
        device: the device of the call.
    """
    allowed = CPU_LAYER_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    known = _PRECISIONS.get(dtypes[0], dtypes[:1]) if len(dtypes) == 1 else ()
    own = [value for value in known if value in allowed]
    return precision if precision in own else next(iter(own), None)


def map_step(step: StepSpec, session: Session) -> dict[tuple[str, str], MappedCall]:
    """Return the native layers of the calls of a step in its framework's first mode.

    Other modes of PyTorch run other kernels, which compute the same.

    Args:
        step: the step.
        session: its worker records the calls.

    Raises:
        UnsupportedError: the step cannot be recorded.
        PydlbenchError: the user's own code failed.
    """
    first = step
    if step.framework != ONNX_FRAMEWORK:
        mode = FRAMEWORK_MODES[step.framework][0]
        first = msgspec.structs.replace(step, mode=mode, feed="resident")
    calls = listed(first, session).calls
    cache_bytes = session.cache_bytes(step.device)
    return map_calls(calls, step.phase, step.precision, step.device, cache_bytes)


def kernels_of(mapped: Mapping[tuple[str, str], MappedCall]) -> EstimateKernels:
    """Return the native kernels of a step, each as often as its calls."""
    return EstimateKernels(
        terms=sharing_kernels(term for each in mapped.values() for term in each.terms * each.count)
    )


def recorded_plan(
    calls: Sequence[RecordedCall],
    *,
    name: str,
    batch: int,
    phase: str,
    precision: str,
    device: str,
    cache_bytes: int | None,
    notes: Sequence[str] = (),
    types: str = "",
) -> EstimatePlan:
    """Return the plan of a recorded step; each call belongs to the modules that make it.

    Args:
        calls: calls of the step.
        name: name of the model.
        batch: images per step.
        phase: phase of the step.
        precision: precision of all layers.
        device: the device of the layers.
        cache_bytes: see :func:`~pydlbench.analysis.estimate.plan_step`.
        notes: notes on the recording.
        types: the types of an ONNX file.
    """
    mapped = map_calls(calls, phase, precision, device, cache_bytes)
    pairs = [(call, mapped[call.signature, call.direction]) for call in calls]
    terms = sharing_kernels(
        dataclasses.replace(term, step_pass=dataclasses.replace(term.step_pass, node=owner))
        for call, stands in pairs
        for owner in _owners(call)
        for term in stands.terms
    )
    counted = [(call, stands) for call, stands in pairs if stands.meaning.kind != "view"]
    missing = [(call.operator, stands.lacks) for call, stands in counted if not stands.terms]

    def share(weight: Callable[[RecordedCall], int]) -> float:
        whole = sum(weight(call) for call, _ in counted)
        mapped_weight = sum(weight(call) for call, stands in counted if stands.terms)
        return mapped_weight / whole if whole else 0.0

    return EstimatePlan(
        name=name,
        title=f"{sum(call.count for call in calls)} calls, {len(calls)} distinct",
        batch=batch,
        phase=phase,
        precision=precision,
        terms=terms,
        recorded=Recorded(
            calls=tuple(calls),
            native_calls=share(lambda call: call.count),
            native_bytes=share(lambda call: call.count * call.bytes),
            unmapped={
                operator: "; ".join(dict.fromkeys(lacks for _, lacks in each))
                for operator, each in group_by(missing, lambda pair: pair[0]).items()
            },
            notes=tuple(notes),
            types=types,
        ),
    )


def _owners(call: RecordedCall) -> list[str]:
    """Return the module of each of the calls; a shared call belongs to the first module."""
    names = [name or MODEL for name in call.shares()]
    owners = [
        name
        for name, share in zip(names, call.shares().values(), strict=True)
        for _ in range(int(share + _ROUNDING))
    ]
    return owners + names[:1] * (call.count - len(owners))


# -----------------------------------------------------------------------------
# The operators of a step: the calls that its framework makes, or groups that run as one.
#
# They are recorded in the framework's own process: from PyTorch's dispatcher, from the nodes of the
# graph that TensorFlow runs, and from onnxruntime's profile of an ONNX file. In a compiled step an
# operator is a group of calls, see ``calls.groups``.


def listed(
    step: StepSpec, session: Session, traced: OperatorsFacts | None = None
) -> OperatorsFacts:
    """Return the distinct calls of a step, recorded without timing it, and its batch.

    Images from the host are a call of their own, of kind ``feed``.

    Args:
        step: the step.
        session: its worker records each step once.
        traced: the calls of a trace of the step; None to record them.

    Raises:
        UnsupportedError: the framework cannot list its calls.
    """
    resident = msgspec.structs.replace(step, feed="resident")
    key = msgspec.json.encode(resident, order="sorted")
    if key not in session.recorded:
        session.recorded[key] = traced or _recorded(resident, session)
    facts: OperatorsFacts = session.recorded[key]
    fed = _fed(step)
    order = (*range(len(fed)), *(len(fed) + place for place in facts.order))
    return msgspec.structs.replace(facts, calls=(*fed, *facts.calls), order=order)


def _recorded(step: StepSpec, session: Session) -> OperatorsFacts:
    worker = session.worker(step.framework, step.device)
    kernel = worker.build(requests.request_call_list, OperatorsFacts, spec=step.to_dict())
    kernel.release()
    return kernel.facts


def kind_of(call: RecordedCall) -> str:
    """Return the kind of a call.

    ``layer`` (it contains an operator that libraries compute), ``pointwise``, ``loss`` (forward and
    backward), ``optimizer`` or ``feed`` (images and labels from the host).
    """
    if is_feed(call.signature):
        return "feed"
    if call.direction == "optimizer":
        return "optimizer"
    if call.direction == "loss" or call.names == ("loss",):
        return "loss"
    names = [call.operator]
    if is_group(call.signature):  # a layer is its first call
        names = call.operator.split("+")
    elif is_node(call.signature):
        names = [TensorFlowNode.read(call.signature).operator]
    return "layer" if any(map(runs_library, names)) else "pointwise"


def is_copy(call: RecordedCall) -> bool:
    """Return whether a pointwise call only moves or converts elements."""
    return kind_of(call) == "pointwise" and _meaning(call).kind == "copy"


def _fed(step: StepSpec) -> tuple[RecordedCall, ...]:
    """Return the call that copies images and labels from the host, if the step has one."""
    if step.feed != "host":
        return ()
    model = build_model(step.model, step.batch, **step.options)
    shape = (model.batch, *model.image)
    return (
        RecordedCall(
            signature=feed_signature(step.layout, shape, model.loss.kind == "cross-entropy"),
            operator="feed",
            names=("feed",),
            bytes=4 * math.prod(shape),
        ),
    )
