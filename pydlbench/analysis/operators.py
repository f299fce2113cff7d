"""Which operators a step has: the calls that its framework tells, or groups that it runs as one.

They are recorded in the framework's own process: PyTorch's dispatcher tells each call, TensorFlow
the nodes of the graph that it runs, and of an ONNX file onnxruntime's profile tells them. Where a
step is compiled, an operator is a group of calls, see ``backends.steps.groups``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.calls.groups import feed_signature, is_feed, is_group, runs_library
from pydlbench.calls.seen.tensorflow import TensorFlowNode, is_node
from pydlbench.models import build_model
from pydlbench.records.operator import OperatorsFacts, RecordedCall

if TYPE_CHECKING:
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session


def listed(
    step: StepSpec, session: Session, traced: OperatorsFacts | None = None
) -> OperatorsFacts:
    """Return the distinct calls of a step that is not timed, its blocks of memory, and its batch.

    Where images come from the host, that is a call of its own, of kind ``feed``.

    Args:
        step: the step.
        session: whose worker records, each step once.
        traced: what a trace of the step has recorded; None has it recorded.

    Raises:
        UnsupportedError: the framework cannot tell them.
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
    """Return what a call stands for.

    ``layer`` (what libraries compute is in it), ``pointwise``, ``loss`` (forwards and backwards),
    ``optimizer`` or ``feed`` (images and labels come from the host).
    """
    if is_feed(call.signature):
        return "feed"
    if call.direction == "optimizer":
        return "optimizer"
    if call.direction == "loss" or call.names == ("loss",):
        return "loss"
    names = [call.operator]
    if is_group(call.signature):  # a layer begins it
        names = call.operator.split("+")
    elif is_node(call.signature):
        names = [TensorFlowNode.read(call.signature).operator]
    return "layer" if any(map(runs_library, names)) else "pointwise"


def _fed(step: StepSpec) -> tuple[RecordedCall, ...]:
    """Return what brings images and labels from the host; nothing where they lie there."""
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
