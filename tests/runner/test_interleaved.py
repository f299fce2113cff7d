"""Invented backends interleaved whose faults are planted: whose times are known to the digit."""

import dataclasses
import itertools
from dataclasses import dataclass, field

import msgspec
import pytest

from pydlbench.backends.base import KernelFacts
from pydlbench.errors import BackendMissingError, PrimitiveError, UnsupportedError, WorkerError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.runner.problem import RowProblem, by_problem
from pydlbench.runner.rows import measured_row
from pydlbench.study.table import Interference
from pydlbench.timing.chunk import Chunk
from pydlbench.timing.policy import Policy

CONV = build_layer("conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1)
GEMM = build_layer("gemm", m=8, k=32, n=16)
PAGES = 700
DEATH = WorkerError("was killed by SIGKILL")


@dataclass
class Invented:
    """A backend with planted faults; seconds per call.

    Attributes:
        kernel_s: the kernel alone.
        clock_hz: what its process reads of the core clock.
        dispatch_s, reorder_s, allocation_s: what comes beside it in each call.
        silent: has no log.
        accumulate: the format of its sums.
        refuses: raised where it is prepared, as users run it and with kept pages.
        dies_at: the request at which it dies.
    """

    kernel_s: float = 1e-3
    dispatch_s: float = 0.0
    reorder_s: float = 0.0
    allocation_s: float = 0.0
    clock_hz: float | None = None
    kernel: str = "brg:avx512"
    layout: str = "src nchw, weights oihw, dst nchw"
    silent: bool = False
    accumulate: str = "float32"
    refuses: dict = field(default_factory=dict)
    dies_at: dict = field(default_factory=dict)
    candidates: list = field(default_factory=list)


class InventedKernel:
    alive = True
    generation = 1

    def __init__(self, host, backend, warm):
        self.host, self.backend, self.warm = host, backend, warm
        evidence = {"variant": f"{backend.kernel}, {backend.layout}"}
        # In the usual process the kernel is the first to touch its output's pages.
        faulting = 0.0 if warm else backend.allocation_s
        if not backend.silent:
            evidence["kernel"] = backend.kernel
            evidence["kernel_s"] = backend.kernel_s + faulting
            evidence["reorder_s"] = backend.reorder_s
            evidence["call_s"] = evidence["kernel_s"] + backend.reorder_s + backend.dispatch_s
        self.facts = KernelFacts(
            algorithm=backend.kernel,
            layout=backend.layout,
            library="invented 1",
            accumulate=backend.accumulate,
            workspace_bytes=0,
            reorder_s={},
            setup_s=0.0,
            correct=Correctness(status="ok", rel_error=0.0, tolerance=1e-6),
            candidates=backend.candidates,
            evidence=evidence,
        )
        self.asked = 0
        self.released = 0

    def sample(self, request):
        self.asked += 1
        one = self.backend
        if self.asked == one.dies_at.get(self.warm):
            raise WorkerError("the worker was killed by SIGKILL")
        self.host.drift *= 1.001
        seconds = one.kernel_s + one.dispatch_s + one.reorder_s
        faults = 0.0
        if one.allocation_s and not self.warm:
            seconds, faults = seconds + one.allocation_s, PAGES
        seconds *= self.host.drift
        return Chunk(
            seconds=(seconds,) * request.samples,
            clock_hz=() if one.clock_hz is None else (one.clock_hz,) * request.samples,
            wall_s=seconds * request.samples * request.inner,
            faults=faults,
        )

    def release(self):
        self.released += 1
        if self.asked == self.backend.dies_at.get(self.warm):
            raise WorkerError("the worker is gone")


class Host:
    """A session without processes."""

    seed = 1

    def __init__(self, **backends):
        self.backends = backends
        self.drift = 1.0
        self.kernels = []
        self.asked = []
        self.logs = {}
        self.beside = []
        self.at_once = []
        self.stored = self
        self.found = []
        # Whether earlier runs have stored the kernels.
        self.known = True

    def threads(self, _case):
        return 2

    def logged(self, case, variant, beside):  # noqa: ARG002 - as the real one
        self.beside.append(beside)
        return self.logs.get(case.backend, {})

    def interference(self):
        return Interference()

    def prepare_at_once(self, wanted):
        self.at_once.append([case.backend for case, _ in wanted])

    def rival_of(self, case, facts):  # noqa: ARG002 - as the real one
        return None

    def known_size(self, *_):
        return None

    def read(self, _case):
        return self.known

    def write(self, case, variant, rival, samples):
        self.found.append((case.backend, variant, rival, samples.median))

    def guarded(self, _case):
        return False

    def allocates(self, case):
        return case.backend in ("torch", "tensorflow")

    def prepare(self, case, *, warm=False, variant=None, alone=False, finals=True):
        del alone, finals
        backend = self.backends[case.mode or case.backend]
        self.asked.append((case.mode or case.backend, warm, variant))
        error = backend.refuses.get(warm)
        if isinstance(error, list):  # of several times
            error = error.pop(0) if error else None
        if error is not None:
            raise error
        kernel = InventedKernel(self, backend, warm)
        self.kernels.append(kernel)
        return kernel

    def sampling_policy(self, _case, _facts):
        return Policy()

    def row(self, case, facts, samples, clock_hz=None):
        return measured_row(case, 2, facts, samples, clock_hz=clock_hz)

    def empty_call_s(self, case):
        return self.backends[case.mode or case.backend].dispatch_s


MODES = {"eager": "torch", "compiled": "torch", "graph": "tensorflow", "xla": "tensorflow"}


def measured(host, cases, visits=1):
    problem = RowProblem(host, cases, visits)
    for _ in range(visits):
        problem.repeat()
    if not problem.finished:
        problem.conclude()
    return [row for _, row in problem.results]


def run(layer=CONV, **backends):
    host = Host(**backends)
    cases = [
        KernelSpec(layer=layer, backend=MODES.get(name, name), mode=name if name in MODES else None)
        for name in backends
    ]
    return host, measured(host, cases)


def test_a_kernel_that_was_handed_over_is_the_callers_to_release():
    host = Host(native=Invented())
    problem = RowProblem(host, [KernelSpec(layer=CONV, device="cuda:0")], 4, keep=True)
    problem.repeat()
    problem.conclude()
    (spec,) = problem.specs
    (kernel,) = host.kernels
    assert problem.hand_over() == {spec: kernel}
    problem.release()
    assert not kernel.released
    assert problem.hand_over() == {}


def named(row):
    return {cause["cause"]: cause["seconds"] for cause in row.causes}


def about(**causes):
    # The machine drifts by some percent while it samples.
    return {name.replace("_", " "): pytest.approx(s, rel=0.1) for name, s in causes.items()}


NATIVE = KernelSpec(layer=CONV)
TORCH = KernelSpec(layer=CONV, backend="torch", mode="eager")
COMPILED = msgspec.structs.replace(TORCH, mode="compiled")
IN_BF16 = msgspec.structs.replace(NATIVE, precision="bf16")
PRODUCT = KernelSpec(layer=GEMM)


@pytest.mark.parametrize(
    ("cases", "groups"),
    [
        # They differ in backend and mode only.
        ([NATIVE, IN_BF16, TORCH, COMPILED], [[NATIVE, TORCH, COMPILED], [IN_BF16]]),
        ([], []),
        # Who is asked for twice does not compete with itself.
        ([NATIVE, PRODUCT, NATIVE], [[NATIVE], [PRODUCT], [NATIVE]]),
        ([NATIVE, TORCH, NATIVE, TORCH], [[NATIVE, TORCH], [NATIVE, TORCH]]),
    ],
)
def test_who_competes_with_whom(cases, groups):
    assert list(by_problem(cases)) == groups


def test_rows_come_in_the_order_given_with_ratios_to_the_fastest():
    host, rows = run(
        numba=Invented(kernel_s=3e-3), native=Invented(), eager=Invented(kernel_s=2e-3)
    )
    assert [(row.backend, row.mode) for row in rows] == [
        ("numba", None),
        ("native", None),
        ("torch", "eager"),
    ]
    assert [row.ratio["to"] for row in rows] == ["native"] * 3
    assert [row.ratio["median"] for row in rows] == pytest.approx([3, 1, 2], rel=0.02)
    assert all(row.ratio["rounds"] >= 9 for row in rows)
    assert all(row.ratio["ci_low"] <= row.ratio["median"] <= row.ratio["ci_high"] for row in rows)
    assert all(kernel.released == 1 for kernel in host.kernels)


def test_rows_without_a_clock_have_the_native_one_of_their_rounds():
    _, (torch, native, numba) = run(
        eager=Invented(), native=Invented(clock_hz=3e9), numba=Invented(clock_hz=2e9)
    )
    assert [row.clock_hz for row in (torch, native, numba)] == [3e9, 3e9, 2e9]
    assert [row.clock_from for row in (torch, native, numba)] == ["native", None, None]
    assert torch.cycles == pytest.approx(torch.time.median * 3e9)


@pytest.mark.parametrize(
    "native",
    [Invented(), Invented(clock_hz=3e9, dies_at={False: 8}), None],
)
def test_without_a_native_clock_there_is_none(native):
    others = {} if native is None else {"native": native}
    _, rows = run(eager=Invented(), numba=Invented(), **others)
    assert [(row.clock_hz, row.clock_from) for row in rows[:2]] == [(None, None)] * 2


def test_the_process_that_keeps_pages_runs_the_same_variant():
    host, rows = run(native=Invented(), eager=Invented(kernel_s=2e-3))
    assert host.asked[-1] == ("eager", True, "brg:avx512, src nchw, weights oihw, dst nchw")
    assert [row.warm_s is None for row in rows] == [True, False]
    assert [row.empty_call_s is None for row in rows] == [True, False]


@pytest.mark.parametrize("dies_at", [1, 8])
def test_who_dies_costs_its_own_row(dies_at):
    host, (native, lost, numba) = run(
        native=Invented(),
        eager=Invented(kernel_s=0.5e-3, dies_at={False: dies_at}),
        numba=Invented(kernel_s=2e-3),
    )
    assert (lost.status, lost.time, lost.ratio) == ("failed", None, None)
    assert "SIGKILL" in lost.reason
    assert (native.ok, numba.ok) == (True, True)
    assert native.ratio["median"] == 1
    assert numba.ratio["median"] == pytest.approx(2, rel=0.02)
    # Also the one whose release fails.
    assert all(kernel.released == 1 for kernel in host.kernels)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedError("no bf16 here"), "skipped"),
        (WorkerError("was killed by SIGKILL"), "failed"),
        (BackendMissingError("torch is not installed"), "failed"),
    ],
)
def test_who_cannot_be_prepared_is_a_row_with_the_reason(error, status):
    _, (native, lost) = run(native=Invented(), eager=Invented(refuses={False: error}))
    assert (lost.status, lost.reason) == (status, str(error))
    assert native.ratio["median"] == 1


@pytest.mark.parametrize("dies_at", [1, 5])
def test_a_group_of_which_all_die_has_a_row_for_each(dies_at):
    host, rows = run(
        native=Invented(dies_at={False: dies_at}),
        eager=Invented(dies_at={False: dies_at}),
        compiled=Invented(refuses={False: WorkerError("was killed by SIGSEGV")}),
        numba=Invented(refuses={False: UnsupportedError("no bf16")}),
    )
    assert [row.status for row in rows] == ["failed", "failed", "failed", "skipped"]
    assert all(row.reason and row.time is None and row.ratio is None for row in rows)
    assert all(kernel.released == 1 for kernel in host.kernels if kernel.asked)


def test_a_crash_in_preparation_does_not_take_the_other_mode_along():
    crash = WorkerError("was killed by SIGSEGV")
    host, rows = run(
        native=Invented(), eager=Invented(), compiled=Invented(refuses={False: [crash]})
    )
    assert [row.status for row in rows] == ["ok", "ok", "failed"]
    # The process that held eager's kernel is gone: it is prepared once more, in the next one.
    assert [(name, warm) for name, warm, _ in host.asked] == [
        ("native", False),
        ("eager", False),
        ("eager", True),
        ("compiled", False),
        ("eager", False),
    ]


@pytest.mark.parametrize(
    "fault",
    [
        {"refuses": {True: WorkerError("killed")}},
        {"refuses": {True: UnsupportedError("no such variant")}},
        {"dies_at": {True: 1}},
        {"dies_at": {True: 9}},
    ],
)
def test_without_the_process_that_keeps_pages_its_column_is_empty(fault):
    _, (_, row) = run(native=Invented(), eager=Invented(kernel_s=2e-3, **fault))
    assert (row.ok, row.warm_s) == (True, None)
    assert row.ratio["median"] == pytest.approx(2, rel=0.02)
    assert row.faults == {"default": 0}


def test_several_faults_at_once_are_not_counted_twice():
    slow = Invented(
        kernel="ref:any", kernel_s=4e-3, allocation_s=2e-3, reorder_s=1e-3, dispatch_s=0.5e-3
    )
    _, (_, row) = run(native=Invented(), eager=slow)
    found = named(row)
    assert list(found) == ["generic kernel", "allocation", "reorders", "dispatch", "unexplained"]
    assert found["generic kernel"] == pytest.approx(3e-3, rel=0.1)
    assert found["allocation"] == pytest.approx(2e-3, rel=0.1)
    assert found["reorders"] == pytest.approx(1e-3, rel=0.05)
    assert found["dispatch"] == pytest.approx(0.5e-3)
    assert sum(cause["share"] for cause in row.causes) == pytest.approx(1)
    assert abs(found["unexplained"]) < 0.1 * 6.5e-3
    assert row.empty_call_s == 0.5e-3
    assert "ref:any" in row.causes[0]["how"]
    assert "brg:avx512" in row.causes[0]["how"]
    assert row.faults == {"default": PAGES, "warm": 0}


def test_a_library_that_logs_only_in_a_process_of_its_own_is_asked_there():
    host = Host(native=Invented(), tensorflow=Invented(kernel_s=4e-3, silent=True))
    log = {"kernel": "ref:any", "kernel_s": 7e-3, "reorder_s": 0.0, "call_s": 8e-3}
    host.logs["tensorflow"] = log
    cases = [KernelSpec(layer=CONV), KernelSpec(layer=CONV, backend="tensorflow")]
    _, row = measured(host, cases)
    assert row.causes[0]["cause"] == "generic kernel"
    assert "ref:any" in row.causes[0]["how"]
    # Made when the machine was at half its pace, beside the process that keeps its pages.
    assert row.causes[0]["seconds"] == pytest.approx(0.875 * 4e-3 - 1e-3, rel=0.2)
    assert [(one.backend.kernel_s, one.warm) for one in host.beside] == [(4e-3, True)]


@pytest.mark.parametrize("native", [Invented(), None])
def test_who_sums_less_exactly_is_nobody_s_reference(native):
    others = {} if native is None else {"native": native}
    _, rows = run(
        eager=Invented(kernel_s=0.5e-3, accumulate="bfloat16"),
        numba=Invented(kernel_s=2e-3),
        **others,
    )
    best = "numba" if native is None else "native"
    assert {row.ratio["to"] for row in rows} == {best}
    assert rows[0].ratio["median"] == pytest.approx(0.25 if native is None else 0.5, rel=0.02)
    assert rows[0].causes == ()


def test_sums_that_are_more_exact_than_the_native_ones_may_be_the_fastest():
    _, rows = run(
        native=Invented(kernel_s=2e-3, accumulate="float16"), eager=Invented(kernel_s=1e-3)
    )
    assert {row.ratio["to"] for row in rows} == {"torch eager"}
    # Where all sum alike, whatever that is, the fastest is the fastest.
    _, rows = run(
        eager=Invented(accumulate="bfloat16"),
        numba=Invented(kernel_s=2e-3, accumulate="bfloat16"),
    )
    assert {row.ratio["to"] for row in rows} == {"torch eager"}


def test_the_fastest_and_those_close_to_it_need_no_causes():
    _, rows = run(native=Invented(), numba=Invented(kernel_s=1.08e-3, dispatch_s=0.01e-3))
    assert [row.causes for row in rows] == [(), ()]


def test_the_order_of_samples_follows_the_seed():
    first, second = (run(native=Invented(), numba=Invented(kernel_s=2e-3))[1] for _ in range(2))
    assert first == second


class Moody(Host):
    """Another process has other pages: a kernel is slower by what its turn says."""

    factors = (1.0, 1.3, 1.1, 1.0, 1.2, 1.05)

    def prepare(self, case, **words):
        kernel = super().prepare(case, **words)
        turn = sum(one.backend is kernel.backend for one in self.kernels) - 1
        factor = self.factors[turn % len(self.factors)] if case.backend == "native" else 1.0
        sample = kernel.sample

        def slowed(request):
            chunk = sample(request)
            return msgspec.structs.replace(chunk, seconds=tuple(factor * x for x in chunk.seconds))

        kernel.sample = slowed
        return kernel


CASES = [KernelSpec(layer=CONV), KernelSpec(layer=CONV, backend="numba")]


def test_the_interval_of_visits_is_that_of_their_medians():
    few, row = (measured(Moody(native=Invented()), CASES[:1], visits=n)[0] for n in (3, 6))
    assert row.time.repetitions == 6
    assert row.time.median == pytest.approx(1.075e-3, rel=4e-2)
    assert (row.time.ci_low, row.time.ci_high) == pytest.approx((1e-3, 1.3e-3), rel=4e-2)
    assert few.time.repetitions == 3
    lowest, highest = min(few.time.visit_s), max(few.time.visit_s)
    assert few.time.ci_high - few.time.median == pytest.approx(1.34 * (highest - lowest))


def test_the_first_visit_searches_and_the_others_take_its_kernel():
    host = Moody(native=Invented())
    measured(host, CASES[:1], visits=3)
    kernel = f"{Invented.kernel} {Invented.layout}"
    assert [variant for _, _, variant in host.asked] == [None, kernel, kernel]
    assert all(one.released == 1 for one in host.kernels)


def test_the_interval_of_a_ratio_is_that_of_the_visits():
    native, numba = measured(
        Moody(native=Invented(), numba=Invented(kernel_s=1.5e-3)), CASES, visits=6
    )
    assert native.ratio["median"] == 1.0
    assert numba.ratio["rounds"] == 6
    assert numba.ratio["ci_low"] == pytest.approx(1.5 / 1.3, rel=2e-2)
    assert numba.ratio["ci_high"] == pytest.approx(1.5, rel=2e-2)


def test_whenever_it_is_interrupted_there_are_rows_of_what_there_is():
    host = Host(native=Invented())
    host.known = None
    problem = RowProblem(host, CASES[:1], 6)
    for visits in range(1, 6):
        problem.repeat()
        assert len(host.found) == 1  # the kernel that the first one has chosen
        ((_, row),) = problem.results
        assert (problem.finished, row.complete, row.time.repetitions) == (False, False, visits)
        assert row.stop_reason.startswith(f"{visits} of 6 repetitions made")
    problem.repeat()
    ((_, row),) = problem.results
    assert (problem.finished, row.complete, row.time.repetitions) == (True, True, 6)
    assert row.stop_reason.startswith("6 repetitions in one process")


def test_kept_kernels_are_prepared_once_and_go_on_without_a_warm_up():
    host = Host(native=Invented(), numba=Invented())
    problem = RowProblem(host, CASES, 4, keep=True)
    for _ in range(3):
        problem.repeat()
    assert [name for name, *_ in host.asked] == ["native", "numba", "native", "native"]
    problem.release()
    assert all(kernel.released == 1 for kernel in host.kernels)


class Busy(Host):
    """A machine that is not ours in some visits of some backends: bursts say so."""

    def __init__(self, *, busy, **backends):
        super().__init__(**backends)
        self.busy = busy

    def prepare(self, case, **words):
        kernel = super().prepare(case, **words)
        visit = sum(one.backend is kernel.backend for one in self.kernels) - 1
        if (case.backend, visit) in self.busy:
            sample = kernel.sample
            kernel.sample = lambda request: msgspec.structs.replace(sample(request), bursts=(0.5,))
        return kernel


@pytest.mark.parametrize(("visits", "contended"), [(2, False), (3, False), (6, True)])
def test_disturbed_visits_are_kept_and_said(visits, contended):
    host = Busy(busy={("native", visit) for visit in range(visits)}, native=Invented())
    (row,) = measured(host, CASES[:1], visits=6)
    assert (row.contended, row.time.repetitions, len(host.asked)) == (contended, 6, 6)
    assert any(f"{visits} of 6" in words for words in row.warnings) is not contended
    quiet = measured(Host(native=Invented()), CASES[:1], visits=6)[0]
    assert row.time.ci_low < 0.8 * quiet.time.ci_low or visits == 2


def test_pages_are_kept_from_the_second_visit_on_where_there_are_any_to_keep():
    eager = KernelSpec(layer=CONV, backend="torch", mode="eager")
    for allocation_s, kept in ((0.0, 0), (5e-5, 2)):
        host = Host(native=Invented(), eager=Invented(kernel_s=1.2e-3, allocation_s=allocation_s))
        native, torch = measured(host, [CASES[0], eager], visits=6)
        assert [warm for name, warm, _ in host.asked if name == "eager"].count(True) == kept
        assert (torch.warm_s is None) is (kept == 0)
        assert native.time.repetitions == 6


@pytest.mark.parametrize(
    ("errors", "visits"),
    [
        ([None, DEATH], 5),
        ([None, DEATH, None, DEATH], 2),
        ([None, None, PrimitiveError("killed by SIGKILL")], 2),
    ],
)
def test_who_fails_later_keeps_the_visits_before_and_says_so(errors, visits):
    """The first death of a worker costs a visit; the second, or another error, all that follow."""
    host = Moody(native=Invented(), numba=Invented(refuses={False: errors}))
    native, numba = measured(host, CASES, visits=6)
    assert (native.status, native.time.repetitions, native.warnings) == ("ok", 6, ())
    assert (numba.status, numba.time.repetitions, numba.ratio["rounds"]) == ("ok", visits, visits)
    assert numba.complete
    (said,) = numba.warnings
    assert f"the row has {visits}" in said
    assert said.endswith("killed by SIGKILL")


def test_rows_of_an_interrupted_run_have_a_ratio_over_the_visits_of_both():
    host = Host(native=Invented(), numba=Invented(kernel_s=2e-3, refuses={False: [DEATH]}))
    problem = RowProblem(host, CASES, 6)
    for _ in range(3):
        problem.repeat()
    (_, native), (_, numba) = problem.results
    assert not native.complete
    assert (native.time.repetitions, numba.time.repetitions) == (3, 2)
    assert (native.ratio["median"], numba.ratio["rounds"]) == (1, 2)
    assert numba.ratio["median"] == pytest.approx(2, rel=0.02)


def test_a_finished_row_leaves_no_samples_in_memory():
    problem = RowProblem(Host(native=Invented(), numba=Invented()), CASES, 2)
    while not problem.finished:
        problem.repeat()
    assert problem.taken == 0
    assert all(row.ok for _, row in problem.results)


def test_who_is_slower_beyond_doubt_has_two_visits_and_the_others_go_on():
    host = Host(native=Invented(), numba=Invented(kernel_s=2e-3), jax=Invented(kernel_s=1.4e-3))
    cases = [*CASES, KernelSpec(layer=CONV, backend="jax")]
    native, numba, jax = measured(host, cases, visits=6)
    assert [row.time.repetitions for row in (native, numba, jax)] == [6, 2, 6]
    assert numba.ratio["median"] == pytest.approx(2, rel=0.02)
    assert numba.complete
    assert "1.5 times as slow as native" in numba.stop_reason
    assert [name for name, *_ in host.asked].count("numba") == 2


def test_a_comparison_of_two_takes_all_repetitions_of_the_slow_one():
    host = Host(native=Invented(), numba=Invented(kernel_s=2e-3))
    problem = RowProblem(host, CASES, 6, whole=True)
    while not problem.finished:
        problem.repeat()
    assert [row.time.repetitions for _, row in problem.results] == [6, 6]


def test_whose_pages_are_still_to_be_looked_at_is_visited_once_more():
    eager = KernelSpec(layer=CONV, backend="torch", mode="eager")
    host = Host(native=Invented(), eager=Invented(kernel_s=2e-3, allocation_s=1e-3))
    _, torch = measured(host, [CASES[0], eager], visits=6)
    assert torch.time.repetitions == 3
    assert named(torch)["allocation"] == pytest.approx(1e-3, rel=0.1)


def test_frameworks_that_are_known_are_made_ready_at_once():
    host = Host(native=Invented(), numba=Invented(kernel_s=1.2e-3), jax=Invented(kernel_s=1.3e-3))
    measured(host, [*CASES, KernelSpec(layer=CONV, backend="jax")], visits=3)
    # Searches are timed: each has the machine for itself.
    assert host.at_once == [[], ["numba", "jax"], ["numba", "jax"]]


class Close(Host):
    """A search that could not tell two kernels apart; the second one has a time of its own."""

    def __init__(self, second_s, **backends):
        super().__init__(**backends)
        self.second = Invented(kernel_s=second_s, kernel="brg:second")

    def rival_of(self, case, facts):  # noqa: ARG002 - as the real one
        return None if case.backend != "native" else "brg:second of the two"

    def prepare(self, case, *, variant=None, **words):
        if variant is None or "second" not in variant:
            return super().prepare(case, variant=variant, **words)
        self.asked.append((self.second.kernel, False, variant))
        kernel = InventedKernel(self, self.second, warm=False)
        self.kernels.append(kernel)
        return kernel


@pytest.mark.parametrize(
    ("second_s", "won", "seconds", "first_asked", "second_asked"),
    [
        (1.2e-3, "brg:avx512", 1e-3, 6, 2),  # out of the running after two visits
        (0.8e-3, "brg:second", 0.8e-3, 2, 6),
        (0.9999e-3, "brg:second", 1e-3, 2, 6),
    ],
)
def test_of_two_kernels_the_faster_one_makes_the_row(
    second_s, won, seconds, first_asked, second_asked
):
    host = Close(second_s, native=Invented())
    (row,) = measured(host, CASES[:1], visits=6)
    assert row.algorithm == won
    assert row.time.median == pytest.approx(seconds, rel=0.03)
    assert row.time.repetitions == 6
    ((_, kept, rival, kept_s),) = host.found
    assert kept.startswith("brg:second") is (won == "brg:second")
    assert rival is None  # they have been compared in enough repetitions
    assert kept_s == row.time.median
    names = [name for name, *_ in host.asked]
    assert (names.count("native"), names.count("brg:second")) == (first_asked, second_asked)
    assert all(kernel.released == 1 for kernel in host.kernels)


@pytest.mark.parametrize(("visits", "undecided"), [(2, True), (6, False)])
def test_later_runs_compare_two_kernels_again_only_after_few_repetitions(visits, undecided):
    host = Close(1e-3, native=Invented())
    prepared, times = host.prepare, itertools.cycle((0.98e-3, 1.02e-3))

    def prepare(case, *, variant=None, **words):
        kernel = prepared(case, variant=variant, **words)
        if variant is not None and "second" in variant:
            kernel.backend = dataclasses.replace(kernel.backend, kernel_s=next(times))
        return kernel

    host.prepare = prepare
    measured(host, CASES[:1], visits=visits)
    rival = host.found[-1][2]
    assert (rival is not None) is undecided


@pytest.mark.parametrize("error", [None, PrimitiveError("wrong"), DEATH])
def test_a_second_kernel_that_is_faster_and_wrong_or_dies_has_lost(error):
    host = Close(0.5e-3, native=Invented())
    prepared = host.prepare

    def prepare(case, *, variant=None, **words):
        second = variant is not None and "second" in variant
        if second and error is not None:
            raise error
        kernel = prepared(case, variant=variant, **words)
        if second:
            correct = Correctness(status="failed")
            kernel.facts = dataclasses.replace(kernel.facts, correct=correct)
        return kernel

    host.prepare = prepare
    (row,) = measured(host, CASES[:1], visits=6)
    assert (row.algorithm, row.correct.status) == ("brg:avx512", "ok")
    assert (row.status, row.time.repetitions) == ("ok", 6)
    assert row.time.median == pytest.approx(1e-3, rel=0.03)
    ((_, _, rival, _),) = host.found
    assert rival is None
    if error is not DEATH:  # which takes its process along
        assert all(kernel.released == 1 for kernel in host.kernels)


def test_kernels_of_one_process_lie_beside_each_other():
    host = Host(native=Invented())
    problem = RowProblem(host, CASES[:1], 3, in_place=True)
    for _ in range(2):
        problem.repeat()
    assert [kernel.released for kernel in host.kernels] == [0, 0]
    problem.repeat()
    assert [kernel.released for kernel in host.kernels] == [1, 1, 1]
