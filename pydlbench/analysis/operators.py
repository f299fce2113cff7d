"""The operators of a step: the calls that its framework makes, or groups that run as one.

They are recorded in the framework's own process: from PyTorch's dispatcher, from the nodes of the
graph that TensorFlow runs, and from onnxruntime's profile of an ONNX file. In a compiled step an
operator is a group of calls, see ``calls.groups``.
"""

import math

import msgspec

from pydlbench.backends.steps import requests
from pydlbench.calls.groups import feed_signature, is_feed, is_group, runs_library
from pydlbench.calls.seen.tensorflow import TensorFlowNode, is_node
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.runner.session import Session


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
