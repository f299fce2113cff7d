"""The calls of a step, each alone: what could not be run, and why."""

from types import SimpleNamespace

from pydlbench.ladder.calls import CallLog, CallVisits, group_calls
from pydlbench.ladder.mapped import MappedCall
from pydlbench.ops.meaning import Meaning
from pydlbench.records.operator import OperatorsFacts, RecordedCall
from pydlbench.records.step import StepSpec
from pydlbench.timing.chunk import Chunk


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


CALLS = (
    RecordedCall(signature="conv", operator="aten.convolution", count=2, bytes=60),
    RecordedCall(signature="conv", operator="aten.convolution", direction="backward", bytes=60),
    RecordedCall(signature="relu", operator="aten.relu", count=3, bytes=60),
    RecordedCall(signature="feed nhwc 2x1x28x28", operator="feed", names=("feed",)),
)
CASE = StepSpec(model="mnist", batch=2)


EXECUTIONS = {"conv": {"oneDNN reorder": 2, "oneDNN convolution": 1}, "relu": {}}


class Process:
    """A session and its worker: calls of two seconds, of which 1.5 are logged or nothing is.

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

    def build(self, _builder, _facts, case, signatures):
        del case
        self.open += 1
        self.builds += 1
        executions = {one: EXECUTIONS[one] for one in signatures}
        facts = OperatorsFacts(names=tuple(signatures), executions=executions)
        logs = self.where.get("logging")

        def sample(request):
            each = {"conv": (2.0, 1.5, 1.0, 0.5), "relu": (2.0, 0.0, 0.0, 0.0)}
            one_round = [t for name in signatures for t in each[name][: 4 if logs else 1]]
            return Chunk(seconds=tuple(one_round * request.samples))

        return SimpleNamespace(facts=facts, sample=sample, release=self.release)

    def release(self):
        self.open -= 1


LOGGED = {"logged_reorders": 3.0, "logged_convolutions": 1.5, "logged_around": 1.5}


def test_what_calls_log_is_summed_as_often_as_the_step_makes_them():
    session = Process()
    log = CallLog(CASE, session, CALLS)
    assert session.where == {"warm": True, "logging": True}
    assert log.executions == {"oneDNN reorder": 6, "oneDNN convolution": 3}
    assert log.logged() == LOGGED
    assert log.computed == 3
    assert log.libraries("conv") == {"oneDNN"}
    assert log.libraries("relu") == set()
    assert log.libraries("unknown") is None


def test_calls_that_have_no_room_together_are_made_ready_batch_by_batch_in_each_visit():
    session = Process(room=250)
    log = CallLog(CASE, session, CALLS)
    assert log.kernel is None
    assert log.executions == {"oneDNN reorder": 6, "oneDNN convolution": 3}
    before = session.builds
    assert log.logged() == LOGGED
    assert session.builds == before + 2
    assert session.open == 0


def test_calls_that_are_left_out_are_in_no_sum():
    log = CallLog(CASE, Process(), CALLS)
    log.leave_out(CALLS[:1])
    assert log.executions == {"oneDNN reorder": 2, "oneDNN convolution": 1}
    assert log.logged() == {name: seconds / 3 for name, seconds in LOGGED.items()}
    assert log.computed == 1


def test_calls_are_grouped_by_who_computes_them():
    logs = {
        "conv": {"oneDNN reorder": 2, "oneDNN convolution": 1},
        "conv3d": {"oneDNN convolution": 1},
        "linear": {"oneDNN matmul": 1},
        "mm": {"MKL SGEMM": 1},
        "both": {"oneDNN reorder": 1, "MKL SGEMM": 1},
        "relu": {},
        "random": {},
        "unknown": None,
    }
    calls = [RecordedCall(signature=name, operator=name) for name in logs]
    mapped = {
        (one.signature, one.direction): MappedCall(
            count=1, work=Meaning(kind="other", note=one.signature), terms=()
        )
        for one in calls
    }
    not_timed = RecordedCall(signature="mm", operator="mm", direction="backward")
    log = SimpleNamespace(
        libraries=lambda name: (
            None if logs[name] is None else {one.split()[0] for one in logs[name]}
        ),
        convolves=lambda name: "oneDNN convolution" in logs[name],
    )

    def covered(call):
        return call.work.note not in ("conv3d", "random")

    found = group_calls([*calls, not_timed], mapped, log, covered)
    assert {name: [one.signature for one in some] for name, some in found.items()} == {
        "outside": ["relu"],
        "mkl": ["mm"],
        "convolved": ["conv"],
        "layerless": ["conv3d", "random"],
    }


def test_a_lap_has_sums_of_groups_of_calls():
    visits = CallVisits(CASE, Process(), CALLS[:3], warm=True)
    visits.groups = {"outside": [CALLS[2]], "mkl": []}
    found = visits()
    assert found["operators"] == 12.0
    assert (found["operators_outside"], found["operators_mkl"]) == (6.0, 0)
