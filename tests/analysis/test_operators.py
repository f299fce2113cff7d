"""Which operators a step has: kinds of calls, whose they are, and each step is recorded once."""

from types import SimpleNamespace

import msgspec
import pytest

from pydlbench.analysis.mapped import kind_of, listed
from pydlbench.calls.groups import CallGroup
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall

GROUP = CallGroup(calls=("a", "b")).text


@pytest.mark.parametrize(
    ("operator", "how", "kind"),
    [
        ("aten.convolution", {}, "layer"),
        ("aten.convolution_backward", {"direction": "backward"}, "layer"),
        ("aten.max_pool2d_with_indices_backward", {"direction": "backward"}, "layer"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward", {}, "layer"),
        ("aten.relu_", {}, "pointwise"),
        ("aten.mm", {"direction": "optimizer"}, "optimizer"),
        ("aten._log_softmax", {"direction": "loss"}, "loss"),
        ("aten._log_softmax_backward_data", {"direction": "backward", "names": ("loss",)}, "loss"),
        ("aten._native_multi_head_attention", {}, "layer"),
        ("aten._scaled_dot_product_flash_attention_for_cpu", {}, "layer"),
        ("convolution+relu_", {"signature": GROUP}, "layer"),
        ("native_batch_norm+relu_", {"signature": GROUP}, "pointwise"),
        ("dot_general+4 more", {"signature": GROUP}, "layer"),
        ("mul+sub", {"signature": GROUP, "direction": "optimizer"}, "optimizer"),
        ("feed", {"signature": "feed nhwc 2x3x8x8 labels"}, "feed"),
    ],
)
def test_a_call_says_what_it_stands_for(operator, how, kind):
    assert kind_of(RecordedCall(**{"signature": "", "operator": operator, **how})) == kind


def test_a_call_belongs_to_its_names_and_the_rest_to_nobody():
    call = RecordedCall.from_owners([("a",), ("a", "b"), (), ("a",)], signature="", operator="x")
    assert (call.count, call.names, call.parts) == (4, ("a", "b"), (2.5, 0.5))
    assert call.shares() == {"a": 2.5, "b": 0.5, "": 1.0}
    alike = RecordedCall.from_owners([("a",), ("b",)], signature="", operator="x")
    assert alike.parts == ()
    assert alike.shares() == {"a": 1.0, "b": 1.0}
    assert RecordedCall.from_owners([()] * 3, signature="", operator="x").shares() == {"": 3.0}


def test_a_step_is_recorded_once_in_a_session_however_it_is_fed():
    asked = []

    def build(_, __, spec):
        asked.append(spec)
        facts = OperatorsFacts(calls=(RecordedCall(signature="a", operator="a"),))
        return SimpleNamespace(facts=facts, release=lambda: None)

    session = SimpleNamespace(recorded={}, worker=lambda *_: SimpleNamespace(build=build))
    case = StepSpec(model="mnist", batch=2)
    first, fed = (
        listed(one, session) for one in (case, msgspec.structs.replace(case, feed="host"))
    )
    assert len(asked) == 1
    assert first.calls == fed.calls[1:]
    assert [kind_of(one) for one in fed.calls] == ["feed", "pointwise"]
    listed(msgspec.structs.replace(case, phase="training"), session)
    assert [one["phase"] for one in asked] == ["forward", "training"]
    # What a trace has recorded is not recorded again, unless it was before.
    backward = msgspec.structs.replace(case, phase="forward-backward")
    traced = OperatorsFacts(calls=(RecordedCall(signature="b", operator="b"),))
    assert listed(backward, session, traced).calls == traced.calls
    assert listed(case, session, traced).calls == first.calls
    assert len(asked) == 2
