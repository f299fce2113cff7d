"""The calls of a step made ready, together or batch by batch, and which of them libraries log."""

from types import SimpleNamespace

import msgspec

from pydlbench.analysis.subjects import ReadyCalls
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.timing.chunk import Chunk, ChunkRequest

CALLS = (
    RecordedCall(signature="conv", operator="aten.convolution", count=2, bytes=60),
    RecordedCall(signature="conv", operator="aten.convolution", direction="backward", bytes=60),
    RecordedCall(signature="relu", operator="aten.relu", count=3, bytes=60),
)
CASE = StepSpec(model="mnist", batch=2)
EXECUTIONS = {"conv": {"oneDNN reorder": 2, "oneDNN convolution": 1}, "relu": {}}
REQUEST = ChunkRequest(samples=2)


class Process:
    """A session and its worker, whose calls take two seconds.

    Args:
        room: bytes of memory; None where nobody knows.
    """

    def __init__(self, room=None):
        self.room, self.open, self.builds = room, 0, 0

    def room_bytes(self, _device):
        return self.room

    def worker(self, *_, **where):
        self.where = where
        return self

    def build(self, _builder, _facts, spec, signatures, **more):
        del spec
        self.more = more
        self.open += 1
        self.builds += 1
        known = [one for one in signatures if one in EXECUTIONS]
        facts = OperatorsFacts(
            names=tuple(known),
            executions={one: EXECUTIONS[one] for one in known},
            refused=dict.fromkeys(set(signatures) - set(known), "no memory"),
        )

        def sample(request):
            return Chunk(seconds=(2.0,) * len(known) * request.samples)

        return SimpleNamespace(facts=facts, sample=sample, release=self.release)

    def release(self):
        self.open -= 1


def visited(ready):
    return {names: len(chunk.seconds) for names, chunk in ready.visit(REQUEST)}


def test_calls_of_one_signature_are_one_and_stay_ready():
    session = Process()
    ready = ReadyCalls(CASE, session, CALLS)
    assert session.where == {"warm": True, "logging": False}
    assert visited(ready) == visited(ready) == {("conv", "relu"): 4}
    assert (session.builds, session.open) == (1, 1)


def test_on_a_gpu_calls_are_in_the_process_of_the_traced_step():
    session = Process()
    ReadyCalls(msgspec.structs.replace(CASE, device="cuda:0"), session, CALLS)
    assert session.where == {"warm": False, "logging": False}


def test_calls_that_have_no_room_together_are_made_ready_batch_by_batch_in_each_visit():
    session = Process(room=250)
    ready = ReadyCalls(CASE, session, CALLS)
    assert ready.kernel is None
    assert visited(ready) == {("conv",): 2, ("relu",): 2}
    assert (session.builds, session.open) == (2, 0)


def test_what_could_not_be_made_ready_has_its_reason():
    odd = RecordedCall(signature="my.op", operator="my.op", bytes=10)
    ready = ReadyCalls(CASE, Process(), [*CALLS, odd])
    assert ready.refused == {"my.op": "no memory"}
    assert visited(ready) == {("conv", "relu"): 4}


def test_a_log_knows_in_which_calls_libraries_execute_anything():
    for room in (None, 500):
        session = Process(room)
        log = ReadyCalls(CASE, session, CALLS, logging=True)
        visited(log)
        assert session.where == {"warm": True, "logging": True}
        assert (log.kernel is None) is (room is not None)
        assert log.executions == EXECUTIONS


def test_calls_have_the_operands_of_the_step_where_all_have_room_together():
    for room, more, notes in ((None, {"of_step": True}, 0), (250, {}, 1)):
        session = Process(room)
        ready = ReadyCalls(CASE, session, CALLS, of_step=True)
        visited(ready)
        assert (session.more, len(ready.notes)) == (more, notes)
    session = Process()
    ReadyCalls(CASE, session, CALLS)
    assert session.more == {}
