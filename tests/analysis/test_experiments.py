"""Experiments of a breakdown, made of invented columns."""

import pytest
from msgspec.structs import replace

from pydlbench.analysis.breakdown import break_down
from pydlbench.analysis.call_times import (
    ALONE,
    STEP,
    TRACED,
    NativeKernel,
    StepParts,
)
from pydlbench.analysis.experiments import (
    LOG,
    PAGES,
    PAGES_KEPT,
    STEP_FOLDED,
    STEP_KEPT,
    WAKEUP,
    alternatives,
    fresh_memory,
    kernel_experiment,
    log_experiments,
    returned_memory,
    wakeups,
)
from pydlbench.records.trace import ProgramCall
from pydlbench.study.table import SampleTable, Visit

MS = 1e-3
ROUNDS = 6
CONVOLUTION = ProgramCall(
    operator="aten.convolution", module="conv1", direction="forward", signature="conv"
)
RELU = ProgramCall(operator="aten.relu", module="relu1", direction="forward", signature="relu")
PARTS = StepParts(
    calls=(CONVOLUTION, RELU, CONVOLUTION),
    alone=("conv", "relu"),
    native={
        ("conv", "forward"): (NativeKernel(subject="nconv", limit_s=8 * MS),),
        ("relu", "forward"): (NativeKernel(subject="nrelu", limit_s=1 * MS),),
    },
)


SUBJECTS = (STEP, TRACED, ALONE, WAKEUP, LOG, "nconv", "nrelu", PAGES, PAGES_KEPT)


def table_of(
    *,
    reordered: float = 3 * MS,
    created: float = 0.25 * MS,
    faults: float | None = 1000.0,
    asleep: int | None = 8,
) -> SampleTable:
    """Return rounds in which a convolution takes 15 ms alone: 10 natively, 3 in reorders."""
    table = SampleTable()
    for number in range(ROUNDS):

        def add(subject, seconds, parts=(), number=number, **more):
            visit = Visit(subject=subject, round=number, seconds=[seconds], parts=parts, **more)
            table.add(visit)

        add(STEP, 40 * MS, faults=faults, voluntary=asleep)
        add(TRACED, 40 * MS, [(17 * MS, 2 * MS, 17 * MS)])
        add(ALONE, 17 * MS, [(15 * MS, 2 * MS)], voluntary=2)
        add(WAKEUP, 0.1 * MS)
        # Behind others all takes twice as long: the log's shares count. 14 of 15 ms are executed.
        executed = 11 * MS + reordered
        # Somebody disturbs one of the logged calls: it, and what is logged of it, take longer.
        slow = 3 if number == 2 else 1
        convolution = (30 * MS, slow * 30 * MS + 5 * MS)
        convolution += tuple(2 * slow * part for part in (executed, reordered, created))
        add(LOG, 34 * MS, [(*convolution, 4 * MS, 5 * MS, 0.0, 0.0, 0.0)])
        add("nconv", 10 * MS)
        add("nrelu", 1 * MS)
        add(PAGES, 5 * MS, faults=1024.0)
        add(PAGES_KEPT, 3 * MS, faults=24.0)
    return table


def kept_step(number: int, seconds: float, *, faults: float | None) -> Visit:
    """Return a visit of a step that keeps its pages, as long between its calls as the step."""
    parts = [(seconds - 6 * MS, 2 * MS, 0.0)]
    return Visit(subject=STEP_KEPT, round=number, seconds=[seconds], parts=parts, faults=faults)


def seconds_of(experiments):
    return {one.term: one.seconds[0] for one in experiments}


def test_logs_tell_reorders_and_other_kernels_of_the_calls_in_which_they_log():
    found = log_experiments(table_of(), PARTS, ("conv", "relu"), {"conv": 4}, 0.1 * MS)
    assert seconds_of(found) == pytest.approx(
        {
            "another kernel": 2 * MS,
            "reorders": 6 * MS,
            "primitive creation": 0.5 * MS,
            "dispatch": 0.2 * MS,
            "call overhead": 1.3 * MS,
            "own kernels": 1 * MS,
        }
    )
    *libraries, others = found
    assert {one.signatures for one in libraries} == {frozenset({"conv"})}
    assert others.signatures == others.whole == frozenset({"relu"})


def test_whatever_disturbs_a_logged_call_disturbs_its_log_as_well():
    found = log_experiments(table_of(), PARTS, ("conv", "relu"), {"conv": 4}, 0.0)
    for one in found:
        assert one.seconds[2] == pytest.approx(one.seconds[0])


def test_a_long_call_that_happens_to_be_slow_with_a_log_is_not_slow_because_of_the_log():
    short, middle = ((seconds, seconds + 1 * MS, seconds, 0.0, 0.0) for seconds in (1 * MS, 2 * MS))
    long = (100 * MS, 111 * MS, 110 * MS, 0.0, 0.0)
    table = SampleTable()
    names = ("short", "middle", "long")
    for number in range(ROUNDS):
        alone = (1 * MS, 2 * MS, 100 * MS)
        table.add(Visit(subject=LOG, round=number, seconds=[1], parts=[(*short, *middle, *long)]))
        table.add(Visit(subject=ALONE, round=number, seconds=[1], parts=[alone]))
        for name in names:
            table.add(Visit(subject=f"n{name}", round=number, seconds=[0.0]))
    calls = [replace(CONVOLUTION, signature=name) for name in names]
    native = {(name, "forward"): (NativeKernel(subject=f"n{name}"),) for name in names}
    parts = StepParts(calls=calls, alone=names, native=native)
    found = log_experiments(table, parts, names, dict.fromkeys(names, 1), 0.0)
    # 110 of 111 ms less what writing costs, as for the others: all of the call.
    assert seconds_of(found)["another kernel"] == pytest.approx(103 * MS)


@pytest.mark.parametrize(("threads", "expected"), [(1, 24), (2, 12)])
def test_what_threads_execute_at_a_time_is_logged_by_each(threads, expected):
    # 15 ms alone; of a call of 30 ms 56 are logged, 24 of them in reorders.
    table = table_of(reordered=12 * MS, created=0.0)
    table.forget(LOG)
    row = (30 * MS, 30 * MS, 56 * MS, 24 * MS, 0.0, 4 * MS, 4 * MS, 0.0, 0.0, 0.0)
    table.add(Visit(subject=LOG, round=0, seconds=[34 * MS], parts=[row]))
    found = log_experiments(table, PARTS, ("conv", "relu"), {"conv": 4}, 0.0, threads)
    assert seconds_of(found)["reorders"] == pytest.approx(expected * MS)


def test_what_the_log_leaves_of_a_call_is_its_overhead():
    table = table_of()
    experiments = log_experiments(table, PARTS, ("conv", "relu"), {"conv": 4}, 0.1 * MS)
    terms = {one.term: one.seconds for one in break_down(table, PARTS, experiments).terms}
    assert terms["unexplained choice"] == pytest.approx(0, abs=1e-9)
    assert terms["call overhead"] == pytest.approx(1.3 * MS)
    assert terms["own kernels"] == pytest.approx(1 * MS)


def test_a_call_whose_log_is_not_known_is_covered_by_no_experiment():
    table = table_of()
    table.forget(LOG)
    row = (30 * MS, 35 * MS, 28 * MS, 6 * MS, 0.5 * MS)
    table.add(Visit(subject=LOG, round=0, seconds=[30 * MS], parts=[row]))
    experiments = log_experiments(table, PARTS, ("conv",), {"conv": 4}, 0.1 * MS)
    found = break_down(table, PARTS, experiments)
    terms = {one.term: one.seconds for one in found.terms}
    assert "own kernels" not in terms
    assert terms["choice of other calls"] == pytest.approx(1 * MS)
    assert "choice: no experiment covers 1 of 3 calls" in found.not_measured


def test_rounds_without_a_log_have_its_shares_and_their_own_calls():
    table = SampleTable()
    for visit in (visit for series in map(table_of().series, SUBJECTS) for visit in series):
        slow = 3 if visit.subject == "nconv" and visit.round % 2 else 1
        if visit.subject != LOG or visit.round % 2 == 0:
            table.add(replace(visit, seconds=[slow * each for each in visit.seconds]))
    experiments = log_experiments(table, PARTS, ("conv", "relu"), {"conv": 4}, 0.1 * MS)
    kernels = next(each for each in experiments if each.term == "another kernel").seconds
    assert [kernels[number] for number in (0, 1)] == pytest.approx([2 * MS, (2 - 2 * 20) * MS])
    (term,) = (
        each
        for each in break_down(table, PARTS, experiments).terms
        if each.term == "unexplained choice"
    )
    assert [term.seconds, term.ci_low, term.ci_high] == pytest.approx([0.0] * 3, abs=1e-9)


def test_calls_with_other_kernels_than_the_fastest_are_explained_by_them():
    table = table_of()
    fastest = {("conv", "forward"): ["winograd"], ("relu", "forward"): ["vectors"]}
    ran = {"conv": ("transposed", "gemm"), "relu": ("vectors",)}
    found = kernel_experiment(table, PARTS, ran, fastest)
    assert found.term == "another kernel"
    assert found.seconds == pytest.approx(dict.fromkeys(range(ROUNDS), 2 * (15 - 10) * MS))
    broken_down = break_down(table, PARTS, [found])
    terms = {one.term: one.seconds for one in broken_down.terms}
    details = {one.term: one.detail for one in broken_down.terms}
    assert "conv1" in details["another kernel"]
    assert "conv1" not in details["unexplained choice"]
    # The same kernel takes 2 ms in the framework, and 1 ms natively: nothing explains that.
    assert terms["unexplained choice"] == pytest.approx(1 * MS)
    assert broken_down.unexplained == pytest.approx(1 / 40)


@pytest.mark.parametrize("ran", [{}, {"relu": ("vectors",)}])
def test_of_calls_without_names_nothing_is_known(ran):
    assert kernel_experiment(table_of(), PARTS, ran, {("conv", "forward"): ["winograd"]}) is None


def test_a_log_of_five_seconds_shows():
    table = table_of(reordered=5.0)
    experiments = log_experiments(table, PARTS, ("conv", "relu"), {"conv": 4}, 0.1 * MS)
    found = break_down(table, PARTS, experiments)
    terms = {one.term: one.seconds for one in found.terms}
    assert terms["reorders"] > 5
    assert found.unexplained is not None
    assert found.unexplained < -200


@pytest.mark.parametrize("names", [(), ("conv", "relu")])
def test_where_no_library_logs_anything_there_is_no_experiment(names):
    assert log_experiments(table_of(), PARTS, names, {}, 0.0) == []


def test_page_faults_of_the_timed_steps_cost_what_one_costs():
    found = fresh_memory(table_of())
    assert found is not None
    assert found.seconds[0] == pytest.approx(2 * MS)
    assert "1000 page faults" in found.how


def test_page_faults_that_nobody_counts_are_not_measured():
    assert fresh_memory(table_of(faults=None)) is None
    table = table_of()
    table.forget(PAGES)
    assert fresh_memory(table) is None


@pytest.mark.parametrize(
    ("left", "counted", "expected"),
    [
        (100.0, 4000.0, 7.2),  # what the other step takes less, and its own page faults
        (900.0, 4000.0, 8.0),  # pages that nobody kept
        (None, 4000.0, 8.0),
        (20.0, 100.0, 0.2),  # half a percent of the step
        (0.0, 1000.0, 2.0),  # 7 us for each page fault: something else has changed
    ],
)
def test_fresh_memory_is_what_kept_pages_save_where_they_matter(left, counted, expected):
    table = table_of(faults=counted)
    for number in range(ROUNDS):
        table.add(kept_step(number, 33 * MS, faults=left))
    assert fresh_memory(table).seconds == pytest.approx(dict.fromkeys(range(ROUNDS), expected * MS))


def test_what_a_step_with_kept_pages_saves_between_its_calls_is_memory_that_is_returned():
    table = table_of(faults=2000.0)
    for number in range(ROUNDS):
        visit = kept_step(number, 33 * MS, faults=0.0)
        parts = [(28 * MS, 4 * MS, 0.0)]
        table.add(replace(visit, parts=parts))
    found = returned_memory(table)
    assert found is not None
    assert found.seconds == pytest.approx(dict.fromkeys(range(ROUNDS), 3 * MS))
    broken_down = break_down(table, PARTS, [found])
    between = {one.term: one.seconds for one in broken_down.terms if one.level == "step"}
    assert between == pytest.approx({"returned memory": 3 * MS, "rest between calls": 1 * MS})
    assert broken_down.between_calls_s == pytest.approx(4 * MS)


@pytest.mark.parametrize(
    ("counted", "left", "calls"),
    [
        (2000.0, 0.0, 28.9),  # a quarter of a percent of the step
        (2000.0, 0.0, 28),  # slower between its calls
        (2000.0, 900.0, 32),  # pages that nobody kept
        (2000.0, None, 32),
        (None, 0.0, 32),
        (0.0, 0.0, 32),  # nothing of page faults
    ],
)
def test_no_memory_is_returned_where_kept_pages_do_not_explain_it(counted, left, calls):
    table = table_of(faults=counted)
    assert returned_memory(table) is None
    for number in range(ROUNDS):
        visit = kept_step(number, 33 * MS, faults=left)
        table.add(replace(visit, parts=[((calls - 2) * MS, 2 * MS, 0.0)]))
    assert returned_memory(table) is None


@pytest.mark.parametrize(("rounds", "ends"), [(ROUNDS - 1, (4, 8)), (ROUNDS - 2, None)])
def test_a_step_with_kept_pages_that_lacks_rounds_makes_no_narrow_interval(rounds, ends):
    table = table_of(faults=2000.0)
    for number in range(rounds):
        kept_s = (32 + 4 * (number % 2)) * MS
        table.add(kept_step(number, kept_s, faults=0.0))
    found = fresh_memory(table)
    assert len(found.seconds) == ROUNDS
    (term,) = (one for one in break_down(table, PARTS, [found]).terms if one.term == found.term)
    if ends:
        assert (term.ci_low, term.ci_high) == pytest.approx([end * MS for end in ends], abs=3 * MS)
        assert term.ci_high - term.ci_low >= 4 * MS
    else:
        assert term.seconds == pytest.approx(4 * MS)  # counted


def test_a_slow_process_of_the_step_is_no_unexplained_time():
    table = table_of()
    table.forget(STEP)
    table.forget(TRACED)
    for number, seconds in enumerate((40, 40, 70, 40, 55, 40)):
        table.add(Visit(subject=STEP, round=number, seconds=[seconds * MS], faults=2000.0))
        table.add(kept_step(number, 36 * MS, faults=0.0))
        parts = [tuple(share * seconds * MS for share in (0.425, 0.05, 0.425))]
        table.add(Visit(subject=TRACED, round=number, seconds=[seconds * MS], parts=parts))
    found = break_down(table, PARTS, [fresh_memory(table)])
    terms = {one.term: one for one in found.terms}
    assert terms["fresh memory"].ci_high - terms["fresh memory"].ci_low > 20 * MS
    assert found.unexplained_high - found.unexplained_low < 0.1


def test_further_processes_of_the_step_have_its_mean_shares_and_no_other_subject():
    table = table_of(faults=2000.0)
    for number in range(ROUNDS):
        table.add(kept_step(number, 36 * MS, faults=0.0))
    for number in range(ROUNDS, ROUNDS + 3):
        table.add(Visit(subject=STEP, round=number, seconds=[80 * MS], faults=8000.0))
    fresh = fresh_memory(table)
    assert fresh.seconds[0] == pytest.approx(4 * MS)
    assert fresh.seconds[ROUNDS] == pytest.approx((0.9 * 80 - 32) * MS)
    found = break_down(table, PARTS, [fresh])
    assert found.levels.step.n == ROUNDS + 3
    (between,) = (each for each in found.terms if each.level == "step")
    assert between.share == pytest.approx(0.1)
    assert found.unexplained == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("first", [0, 2])
def test_rounds_before_a_step_with_kept_pages_do_not_change_what_is_unexplained(first):
    table = table_of()
    table.forget(STEP)
    table.forget(TRACED)
    for number, seconds in enumerate((70, 64, 40, 40, 40, 40)):
        table.add(Visit(subject=STEP, round=number, seconds=[seconds * MS], faults=8000.0))
        parts = [tuple(share * seconds * MS for share in (0.425, 0.05, 0.425))]
        table.add(Visit(subject=TRACED, round=number, seconds=[seconds * MS], parts=parts))
    for number in range(first, ROUNDS):
        table.add(kept_step(number, 36 * MS, faults=0.0))
    found = break_down(table, PARTS, [fresh_memory(table)])
    terms = {one.term: one.seconds for one in found.terms}
    # The calls take 32 ms with kept pages, and as long alone.
    assert terms["unexplained context"] == pytest.approx(0, abs=0.1 * MS)


def test_a_changed_step_is_compared_round_by_round():
    table = table_of()
    for number, seconds in ((0, 37 * MS), (2, 38 * MS), (4, 38.5 * MS)):
        table.add(Visit(subject=STEP_KEPT, round=number, seconds=[seconds]))
    table.add(Visit(subject=STEP_FOLDED, round=1, seconds=[50 * MS]))
    # A round that was interrupted before its step.
    table.add(Visit(subject=STEP_FOLDED, round=99, seconds=[90 * MS]))
    kept, folded = alternatives(table, {STEP_KEPT: "a", "none": "b", STEP_FOLDED: "c"})
    assert (kept.change, kept.n, kept.median) == (STEP_KEPT, 3, pytest.approx(38 * MS))
    assert kept.saved == pytest.approx(2 * MS)
    assert kept.ci_low < 0 < 4 * MS < kept.ci_high
    assert (folded.n, folded.ci_low, folded.ci_high) == (1, None, None)
    assert folded.saved == pytest.approx(-10 * MS)


def test_a_changed_step_without_a_step_in_any_of_its_rounds_is_no_row():
    table = table_of()
    table.add(Visit(subject=STEP_KEPT, round=99, seconds=[37 * MS]))
    assert alternatives(table, {STEP_KEPT: "a"}) == []


def test_threads_that_sleep_so_seldom_that_it_does_not_matter_cost_next_to_nothing():
    found = wakeups(table_of(asleep=3))
    assert found.seconds[0] == pytest.approx(3 * 0.1 * MS)
    assert found.level == "in_context"


@pytest.mark.parametrize(("asleep", "said"), [(8, "8.0 times in a step"), (None, "not measured")])
def test_a_bound_that_matters_explains_nothing(asleep, said):
    assert said in wakeups(table_of(asleep=asleep))


def test_without_the_cost_of_waking_there_is_no_bound():
    table = table_of()
    table.forget(WAKEUP)
    assert "not measured" in wakeups(table)
