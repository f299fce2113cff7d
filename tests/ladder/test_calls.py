"""The calls of a step, each alone: what could not be run, and why."""

from types import SimpleNamespace

from pydlbench.ladder.calls import CallVisits
from pydlbench.records.operator import RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.steps.operations import OperatorsFacts


def test_each_reason_for_which_an_operator_was_not_run_is_told_once():
    calls = [
        RecordedCall(signature=f"my.op.default({n})", operator="my.op", count=n, bytes=10)
        for n in (1, 2, 3)
    ]
    refused = dict(
        zip((one.signature for one in calls), ("no memory", "no text", "no memory"), strict=True)
    )
    kernel = SimpleNamespace(facts=OperatorsFacts(refused=refused))
    session = SimpleNamespace(
        room_bytes=lambda _: None,
        worker=lambda *_, **__: SimpleNamespace(build=lambda *_, **__: kernel),
    )
    case = StepSpec(model="mnist", batch=2)
    found = CallVisits(case, session, calls, warm=False).unreplayed()
    assert found.reasons == {"my.op": ("no memory", "no text")}
    assert (found.calls, found.bytes) == (1.0, 1.0)
