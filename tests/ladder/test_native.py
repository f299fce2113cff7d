"""Native rows: sorted by what they stand for, and visited lap by lap."""

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest
from invented_evidence import row

from pydlbench.errors import WorkerError
from pydlbench.ladder.estimate import Range, plan
from pydlbench.ladder.mapped import MappedCall
from pydlbench.ladder.native import NativeVisits, native_parts, native_sum
from pydlbench.models import build_model
from pydlbench.ops.meaning import Meaning
from pydlbench.records.measurement import Roofline
from pydlbench.runner.options import Options
from pydlbench.timing.chunk import Chunk


@pytest.fixture(scope="module")
def model():
    return build_model("resnet18", 2)


@pytest.fixture(scope="module")
def native(model):
    wanted = plan(model, "training")
    return native_sum(wanted, {case: row(case, 2.0, 0.5) for case in wanted.cases})


def test_native_rows_are_sorted_by_what_they_stand_for(model, native):
    wanted = plan(model, "training")
    assert native.time == Range(hot=2.0 * len(wanted.terms), cold=2.0 * len(wanted.terms))
    parts = native.of_layers(model) + native.of_pointwise(model)
    assert parts + native.loss_s + native.optimizer_s == pytest.approx(native.time.middle)
    updates = [one for one in wanted.terms if (one.work.layer.name or "").endswith("/update")]
    assert native.optimizer_s == 2.0 * len(updates)
    assert native.loss_s == 4.0 * (1 + len(model.decays))  # forward and backward
    above = sum(native.above_roofs().values())
    assert above == pytest.approx(0.75 * native.of_nodes())


def test_a_row_that_could_not_be_measured_is_named(model):
    wanted = plan(model, "forward")
    bad = wanted.terms[0].hot
    rows = {c: row(c, 2.0, status="failed" if c == bad else "ok") for c in wanted.cases}
    made = native_sum(wanted, rows)
    assert made.missing == (f"{bad.layer.name} forward: no such kernel",)
    assert wanted.terms[0].work.node not in made.by_node


def test_a_node_some_of_whose_native_rows_failed_has_no_native_time(model):
    wanted = plan(model, "training")
    nodes = {node.name for node in model}
    backward = [one for one in wanted.terms if one.work.pass_ == "backward-data"]
    bad = next(one for one in backward if one.work.node in nodes)
    rows = {c: row(c, 2.0, status="failed" if c == bad.hot else "ok") for c in wanted.cases}
    made = native_sum(wanted, rows)
    assert bad.work.node in made.by_node
    found = native_parts(model, made, single=True)
    assert bad.work.node not in found
    assert "optimizer" in found


def test_native_seconds_stand_under_the_names_of_operators(model, native):
    found = native_parts(model, native, single=True)
    assert found.keys() == {node.name for node in model} | {"loss", "optimizer"}
    assert sum(found.values()) == pytest.approx(native.time.middle)
    joined = native_parts(model, native, single=False)
    assert joined == {"loss": native.loss_s, "optimizer": native.optimizer_s}
    # What computes nothing takes nothing.
    free = next(node.name for node in model if node.layer is None)
    assert found[free] == 0


# --- visits ---------------------------------------------------------------------------------------


class Prepared:
    """A kernel of the invented session."""

    def __init__(self, session, case):
        self.session, self.case = session, case
        self.facts = SimpleNamespace(reorder_s={"source": 0.001, "weights": 0.002})

    def sample(self, request):
        seconds = self.session.seconds(self.case)
        samples = (*(seconds,) * (request.samples - 1), self.session.last * seconds)
        self.session.requests[self.case] = request
        beside = self.session.beside.get(self.case, [])
        canary = (beside.pop(0) if beside else 1.0,)
        return Chunk(seconds=samples, clock_hz=(self.session.clock,), wall_s=seconds, canary=canary)

    def release(self):
        self.session.open -= 1


class Invented:
    """A session whose kernels take a millisecond with hot caches and two with cold ones."""

    def __init__(self):
        self.options = Options(budget_s=0.006)
        # ``last`` is how much longer than the others the last sample of each chunk takes.
        self.clock, self.factor, self.last, self.open = 4e9, 1.0, 1.0, 0
        self.asked, self.dying, self.renewed = [], None, 0
        # Of each case the last request, and the canaries that its next visits have beside them.
        self.requests, self.beside = {}, {}

    def seconds(self, case):
        return self.factor * (0.001 if case.cache == "hot" else 0.002)

    def worker(self, backend, device):
        assert (backend, device) == ("native", "cpu")
        return self

    def close(self, *, kill):
        assert kill
        assert self.open == 0
        self.renewed += 1

    def prepare(self, case, *, variant=None):
        self.asked.append((case, variant))
        if case == self.dying:
            raise WorkerError("it died")
        self.open += 1
        return Prepared(self, case)


@pytest.fixture
def visits():
    """Visits of mnist's kernels, their session and the plan."""
    wanted = plan(build_model("mnist", 2))

    def known(case):
        roofline = Roofline(bound="compute", time_s=0.0005, efficiency=0.5)
        made = row(case, 0.001)
        return msgspec.structs.replace(
            made, roofline=roofline, clock_hz=4e9, algorithm="brgconv", layout="nhwc"
        )

    session = Invented()
    rows = {case: known(case) for case in wanted.cases}
    return NativeVisits(wanted, rows, session, 6), session, wanted


def test_a_lap_prepares_each_kernel_anew_from_its_variant_and_sums(visits):
    native, session, wanted = visits
    first = native()
    terms = len(wanted.terms)
    assert first["native_hot"] == pytest.approx(0.001 * terms)
    assert first["native_cold"] == pytest.approx(0.002 * terms)
    assert first["native"] == pytest.approx(0.0015 * terms)
    assert first["limit"] == pytest.approx(0.0005 * terms)
    products = sum(one.work.layer.multiply_adds for one in wanted.terms)
    assert 0 < products < terms
    assert first["native_fusible"] == pytest.approx(0.0015 * (terms - products))
    native()
    assert len(session.asked[: native.kernels]) == len(wanted.cases) == native.kernels
    assert {case for case, _ in session.asked[: native.kernels]} == set(wanted.cases)
    assert {variant for _, variant in session.asked} == {"brgconv nhwc"}
    assert session.open == 0
    assert session.renewed == 2


def test_kernels_come_in_another_order_each_time_and_those_of_one_problem_in_a_row(visits):
    native, session, wanted = visits
    native()
    first = [case for case, _ in session.asked]
    hot = [msgspec.structs.replace(case, cache="hot") for case in first]
    assert hot[::2] == hot[1::2]
    assert hot[::2] != [one.hot for one in wanted.terms]
    # Nothing is so small or so much like with hot caches that it is left out of the second lap.
    session.asked.clear()
    native()
    again = [case for case, _ in session.asked]
    both = [[one for one in order if one in again] for order in (first, again)]
    assert both[0] != both[1]


def test_a_visit_is_one_chunk_of_the_length_that_the_kernel_asks_for(visits):
    native, session, wanted = visits
    short, middle, long = (one.hot for one in wanted.terms[:3])
    seconds = {short: 1e-5, middle: 0.003, long: 0.3}
    session.seconds = lambda case: seconds.get(case, 0.001)
    for _ in range(4):  # so that each had its turn once its time was known
        native()
    few, some, one = (session.requests[case] for case in (short, middle, long))
    assert few.inner * 1e-5 >= 1e-4
    assert few.samples >= 3
    assert few.untimed == 200
    assert (some.samples, some.inner, some.untimed) == (5, 1, 1)
    assert (one.samples, one.inner, one.untimed) == (1, 1, 0)


def test_a_visit_has_the_mean_of_its_samples_as_means_add_up(visits):
    native, session, wanted = visits
    session.last = 4.0
    found = native()
    samples = {request.samples for request in session.requests.values()}
    assert all(count > 2 for count in samples)  # whose median is that of the others
    expected = sum(
        0.001 * (session.requests[one.hot].samples + 3) / session.requests[one.hot].samples
        for one in wanted.terms
    )
    assert found["native_hot"] == pytest.approx(expected)


def test_calls_of_a_group_have_a_sum_of_their_own(visits):
    native, _, wanted = visits
    first, second = wanted.terms[:2]
    # A call's layers are those of the sum, whatever they are named there.
    other = dataclasses.replace(first.hot.layer, name="another")
    first = dataclasses.replace(first, hot=msgspec.structs.replace(first.hot, layer=other))
    own = [
        MappedCall(count=3, work=Meaning(kind="layer"), terms=(first, second)),
        MappedCall(count=2, work=Meaning(kind="view"), terms=()),
    ]
    native.groups = {"outside": own, "mkl": []}
    found = native()
    assert found["native_outside"] == pytest.approx(3 * 2 * 0.0015)
    assert found["native_mkl"] == 0


def test_a_call_is_covered_where_all_of_its_layers_have_a_time():
    wanted = plan(build_model("mnist", 2))
    first, second = wanted.terms[:2]
    rows = {c: row(c, 2.0, status="failed" if c == second.hot else "ok") for c in wanted.cases}
    native = NativeVisits(wanted, rows, Invented(), 6)

    def covers(kind, *terms):
        return native.covers(MappedCall(count=1, work=Meaning(kind=kind), terms=terms))

    assert covers("layer", first)
    assert not covers("layer", first, second)
    assert not covers("layer")
    assert covers("view")


def test_the_limit_follows_the_clock_of_the_lap(visits):
    native, session, wanted = visits
    session.clock = 2e9
    assert native()["limit"] == pytest.approx(0.001 * len(wanted.terms))
    assert native.clock_hz == 2e9


def test_what_stands_beside_operators_is_the_middle_lap(visits):
    native, session, wanted = visits
    for session.factor in (1.0, 5.0, 2.0):
        native()
    # Some of the small ones were not visited in each.
    assert native.sums().time.cold == pytest.approx(2 * 0.002 * len(wanted.terms))


def test_a_kernel_that_dies_counts_with_what_is_known_of_it(visits):
    native, session, wanted = visits
    first = native()
    session.dying = wanted.terms[0].cold
    assert native.notes() == []
    assert native()["native_cold"] == pytest.approx(first["native_cold"])
    (said,) = native.notes()
    assert session.dying.label in said
    assert "1 visits failed, 1 made its time" in said
    assert said.endswith("it died")


def test_a_kernel_that_dies_in_every_visit_stands_with_the_time_of_the_search(visits):
    native, session, wanted = visits
    session.dying = wanted.terms[0].cold
    for _ in range(2):
        native()
    (said,) = native.notes()
    assert session.dying.label in said
    assert "2 visits failed, none made its time" in said
    assert "the search's" in said


def test_the_smallest_kernels_have_their_turn_in_every_third_lap(visits):
    native, session, wanted = visits
    slow = wanted.terms[0].hot
    session.seconds = lambda case: 1.0 if case == slow else 1e-6
    first = native()
    laps = []
    for _ in range(3):
        session.asked.clear()
        assert native()["native_hot"] == pytest.approx(first["native_hot"])
        laps.append([case for case, _ in session.asked])
    assert all(slow in one for one in laps)
    small = [case for one in laps for case in one if case != slow]
    assert sorted(map(str, small)) == sorted(str(case) for case in wanted.cases if case != slow)
    assert max(map(len, laps)) < len(wanted.cases) / 2


def test_cold_caches_that_do_not_matter_follow_the_hot_ones(visits):
    native, session, wanted = visits
    term = wanted.terms[0]
    seconds = {term.hot: 1.0, term.cold: 1.01}
    session.seconds = lambda case: session.factor * seconds.get(case, 0.001)
    native()
    native()
    rest = 0.001 * (len(wanted.terms) - 1)
    seen = []
    for session.factor in (1.0, 2.0, 3.0):
        session.asked.clear()
        found = native()
        seen.append(term.cold in [case for case, _ in session.asked])
        # The small ones stand with the times of their last turn.
        assert found["native_cold"] == pytest.approx(session.factor * 1.01, abs=3 * rest)
    assert sum(seen) == 1


def test_cold_caches_that_matter_are_visited_in_each_lap(visits):
    native, session, wanted = visits
    term = wanted.terms[0]
    session.seconds = lambda case: {term.hot: 1.0, term.cold: 1.05}.get(case, 0.001)
    for _ in range(5):
        session.asked.clear()
        native()
        assert {term.hot, term.cold} <= {case for case, _ in session.asked}


def test_a_visit_beside_somebody_else_is_made_again_at_the_end_of_the_lap(visits):
    native, session, wanted = visits
    case = wanted.terms[0].cold
    session.beside = {case: [0.5, 0.97]}
    native()
    assert [one for one, _ in session.asked].count(case) == 2
    assert session.asked[-1][0] == case
    assert 0.99 < native.share < 1


def test_a_kernel_beside_which_the_cores_are_never_ours_stands_with_its_last_time(visits):
    native, session, wanted = visits
    case = wanted.terms[0].cold
    first = native()
    session.factor = 3.0
    session.beside = {one: [0.5, 0.5] for one in wanted.cases if one != case}
    # Of all kernels one is believed: the canary of the lap says so.
    found = native()
    assert found["native_cold"] == pytest.approx(first["native_cold"] + 2 * 0.002)
    assert 0.5 < native.share < 0.6
    assert len(native.notes()) == 0


def test_a_kernel_that_was_never_alone_stands_with_the_time_of_the_search(visits):
    native, session, wanted = visits
    assert native.notes() == []
    alone = wanted.terms[0].hot
    session.beside = {one: [0.5, 0.5] for one in wanted.cases if one != alone}
    session.factor = 3.0
    # The rows of the search are a millisecond each.
    assert native()["native_hot"] == pytest.approx(0.001 * (len(wanted.terms) + 2))
    assert 0.5 < native.share < 0.6
    (said,) = native.notes()
    assert f"{native.kernels - 1} of {native.kernels} kernels" in said
    for _ in range(3):
        native()
    assert native.notes() == []


def test_reorders_are_beside_the_sums(visits):
    native, _, wanted = visits
    native()
    assert native.reorders("weights") == pytest.approx(0.002 * len(wanted.terms))
    assert native.reorders() == pytest.approx(0.003 * len(wanted.terms))


def test_a_convolution_whose_cold_row_was_skipped_stands_with_its_hot_one_for_both():
    wanted = plan(build_model("mnist", 2))
    rows = {case: row(case, 0.001 if case.cache == "hot" else 0.002) for case in wanted.cases}
    first, *others = (one for one in wanted.terms if one.work.layer.kind == "conv2d")
    rows[first.cold] = row(first.cold, 0.002, status="skipped", reason="too many sets of operands")
    native = NativeVisits(wanted, rows, Invented(), 6)
    assert native.convolutions == 1 + len(others)
    # The session's kernels take what those of the rows took.
    assert native()["native_convolutions"] == pytest.approx(0.001 + 0.0015 * len(others))
