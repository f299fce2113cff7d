"""What a session asks of workers beside its samples, with invented ones."""

import dataclasses
from types import SimpleNamespace

import msgspec
import pytest
from said import says

from pydlbench.backends.base import KernelFacts
from pydlbench.devices.probe_cache import ProbeCache
from pydlbench.errors import UnsupportedError, WorkerError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.runner.kernels import SessionKernels
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.problem import RowProblem
from pydlbench.study.table import Interference, Series, Visit
from pydlbench.timing.chunk import Chunk

CASE = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16), backend="tensorflow", mode="graph")
COST_S = 3e-3
LINE = (
    "onednn_verbose,v1,primitive,exec,cpu,{},{},undef,src:f32::blocked:ab::f0 "
    "dst:f32::blocked:ab::f0,attr-scratchpad:user,,8x32:32x16,{}\n"
)


class Kernel:
    """A kernel whose machine gets slower with each call; ``log`` is told of every call."""

    def __init__(self, machine, seconds, log=None):
        self.machine, self.seconds, self.log = machine, seconds, log
        self.released = False

    def sample(self, request):
        self.machine.asked.append(self)
        if self.log is not None:
            self.log.clear()
            for _ in range(request.untimed + request.samples * request.inner):
                for primitive, name, share in (
                    ("reorder", "jit:uni", 0.1),
                    ("matmul", "brg:avx512", 0.6),
                ):
                    taken = 1e3 * share * self.machine.call_s * self.machine.pace
                    self.log.append(LINE.format(primitive, name, taken))
        seconds = self.seconds * self.machine.pace + (0 if self.log is None else COST_S)
        self.machine.pace *= 1.1
        return Chunk(seconds=(seconds,) * request.samples, wall_s=seconds)

    def release(self):
        self.released = True


class Machine:
    """Invented workers; writing a log takes three times as long as the call itself."""

    call_s = 1e-3

    def __init__(self):
        self.pace = 1.0
        self.asked = []
        self.log = []
        self.probes = []
        self.prepared = []
        self.empty = [1e-4, 2e-4]
        self.logging = Kernel(self, self.call_s, self.log)

    def worker(self, *_, **__):
        return self

    def stderr(self):
        return "".join(self.log)

    def prepare(self, _, preparation):
        self.prepared.append(preparation)
        return self.logging

    def probe(self, name, **arguments):
        self.probes.append((name, arguments))
        seconds = self.empty.pop(0)
        if seconds is None:
            raise WorkerError("killed by SIGKILL")
        return {"seconds": seconds}


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def kernels(machine, monkeypatch):
    facts = SimpleNamespace(memory_available_bytes=None)
    workers = SimpleNamespace(get=machine.worker)
    devices = SimpleNamespace(kept=lambda: ProbeCache(None, ""))
    found = SessionKernels(RunnerOptions(), facts, (0, 1), workers, devices)
    monkeypatch.setattr(found, "cold_bytes", lambda _: 0)
    return found


def test_a_log_is_held_against_calls_without_one_that_take_turns(machine, kernels):
    beside = Kernel(machine, machine.call_s)
    found = kernels.logged(CASE, None, beside)
    assert machine.asked == [beside, machine.logging] * 7
    assert found["kernel"] == "brg:avx512"
    # The machine loses three quarters of its pace while they take turns.
    assert found["kernel_s"] / found["call_s"] == pytest.approx(0.6, rel=0.1)
    assert found["reorder_s"] / found["call_s"] == pytest.approx(0.1, rel=0.1)
    assert machine.logging.released
    assert not beside.released  # it is the problem's


def test_without_a_process_beside_it_the_logged_call_itself_counts(kernels):
    found = kernels.logged(CASE, None)
    assert found["kernel_s"] / found["call_s"] == pytest.approx(0.6 * 1.331 / (1.331 + 3))


def test_calls_that_take_long_are_few(machine, kernels):
    machine.logging.seconds = 4.0
    kernels.logged(CASE, None, Kernel(machine, 1.0))
    assert len(machine.asked) == 2 * 3


def test_who_dies_beside_the_log_costs_the_log_only(machine, kernels):
    def dies(_):
        raise WorkerError("killed by SIGKILL")

    assert kernels.logged(CASE, None, SimpleNamespace(sample=dies)) == {}
    assert machine.logging.released


def test_what_was_verified_is_not_verified_again_beside_the_log(machine, kernels):
    machine.logging.facts = KernelFacts(
        algorithm="matmul",
        layout="ab",
        library="invented 1",
        accumulate="fp32",
        workspace_bytes=0,
        reorder_s={},
        setup_s=0.0,
        correct=Correctness(status="ok"),
        candidates=[],
        evidence={"variant": "one"},
    )
    kernels.prepare(CASE)
    machine.prepared.clear()
    for variant in ("one", "another"):
        kernels.logged(CASE, variant)
    assert [each.verified for each in machine.prepared] == [True, False]


def test_only_those_who_cannot_switch_their_log_on_are_asked(machine, kernels):
    assert kernels.logged(KernelSpec(layer=CASE.layer, backend="torch"), None) == {}
    assert machine.asked == []


def test_the_empty_call_is_taken_again_each_time(machine, kernels):
    assert [kernels.empty_call_s(CASE) for _ in range(2)] == [1e-4, 2e-4]
    (name, arguments), _ = machine.probes
    assert (name, arguments["mode"]) == ("empty_call", "graph")
    assert arguments["samples"] * arguments["inner"] < 1000


def test_an_empty_call_that_fails_is_left_out(machine, kernels):
    machine.empty = [None, 1e-4]
    assert [kernels.empty_call_s(CASE) for _ in range(2)] == [None, 1e-4]


class Preparing:
    """A worker that keeps what it was asked to prepare; its kernels cannot be timed."""

    alive = True
    generation = 1

    def __init__(self):
        self.asked = []
        self.verified = []
        correct = SimpleNamespace(status="ok")
        words = {
            "timing": "steady",
            "evidence": {},
            "correct": correct,
            "reorder_s": {},
            "candidates": [],
        }
        self.facts = SimpleNamespace(algorithm="jit", layout="src nhwc", **words)

    def prepare(self, case, preparation):
        self.asked.append((case.cache, preparation.variant, preparation.brief))
        self.verified.append(preparation.verified)
        return self

    def sample(self, _request):
        raise UnsupportedError("no clock")

    def release(self):
        pass


def preparing(estimate, path=None, **options):
    worker = Preparing()
    facts = SimpleNamespace(memory_available_bytes=1 << 30, caches=())
    workers = SimpleNamespace(get=lambda *_, **__: worker)
    devices = SimpleNamespace(kept=lambda: ProbeCache(path, "machine"))
    kernels = SessionKernels(
        RunnerOptions(estimate=estimate, **options), facts, (0,), workers, devices
    )
    kernels.cold_bytes = lambda _: 0
    return kernels, worker


def measured(kernels, cases):
    problem = RowProblem(kernels, cases)
    problem.repeat()
    return [row for _, row in problem.results]


@pytest.mark.parametrize(
    ("estimate", "words", "variant", "brief"),
    [
        (True, {}, "jit src nhwc", True),
        (False, {}, "jit src nhwc", False),  # its own: it was searched for before
        (True, {"backend": "torch", "mode": "eager"}, None, False),
        (True, {"device": "cuda:0"}, "jit src nhwc", True),
    ],
)
def test_cold_caches_are_timed_with_the_kernel_of_hot_ones(estimate, words, variant, brief):
    kernels, worker = preparing(estimate)
    hot = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16), **words)
    cold = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16), cache="all-cold", **words)
    other = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=8), cache="all-cold", **words)
    for case in (cold, hot, cold, other):
        (row,) = measured(kernels, [case])
        assert row.reason == "no clock"
    assert worker.asked == [
        ("all-cold", None, brief),
        ("hot", None, brief),
        ("all-cold", variant, brief),
        ("all-cold", None, brief),
    ]


def test_a_hot_row_from_elsewhere_gives_the_cold_one_its_kernel():
    kernels, worker = preparing(estimate=True)
    hot = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16))
    kernels.remember(hot, "gemm", "src plain")
    measured(kernels, [KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16), cache="all-cold")])
    assert worker.asked == [("all-cold", "gemm src plain", True)]


def test_what_competes_is_searched_in_full():
    kernels, worker = preparing(estimate=True)
    hot = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16))
    kernels.prepare(hot)
    assert worker.asked == [("hot", None, False)]


def test_a_kernel_is_searched_for_and_verified_once_whatever_its_rows_are_called():
    kernels, worker = preparing(estimate=False)
    first = KernelSpec(layer=dataclasses.replace(CASE.layer, name="a/one"))
    second = KernelSpec(layer=dataclasses.replace(CASE.layer, name="a/two"))
    for case in (first, second, first):
        kernels.prepare(case)
    kernels.prepare(first, variant="jit src nhwc")
    kernels.prepare(msgspec.structs.replace(first, precision="bf16"))
    name = "jit src nhwc"
    assert [variant for _, variant, _ in worker.asked] == [None, name, name, name, None]
    assert worker.verified == [False, True, True, True, False]


def visits(*times):
    return Series(
        [Visit(subject=0, round=i, preparation=i, seconds=(one,)) for i, one in enumerate(times)]
    )


HOT = KernelSpec(layer=build_layer("gemm", m=8, k=32, n=16, name="net/fc"))


def test_the_fastest_kernel_is_kept_for_later_runs_and_verified_again(tmp_path):
    path = tmp_path / "probes.json"
    first, worker = preparing(False, path)
    first.prepare(HOT)
    assert first.stored.write(HOT, "jit src nhwc", "gemm src plain", visits(1.0, 1.02)) is None
    assert worker.asked == [("hot", None, False)]

    later, worker = preparing(False, path)
    other_name = msgspec.structs.replace(HOT, layer=HOT.layer.replace(name="net/other"))
    kernel = later.prepare(other_name)
    assert worker.asked == [("hot", "jit src nhwc", False)]
    assert worker.verified == [False]
    assert later.rival_of(other_name, kernel.facts) == "gemm src plain"
    assert later.stored.repetitions([HOT]) == 4
    later.prepare(msgspec.structs.replace(HOT, precision="bf16"))
    assert worker.asked[-1] == ("hot", None, False)


@pytest.mark.parametrize("options", [{"keep_probes": False}, {"algorithms": True}])
def test_what_is_asked_to_be_found_anew_is(tmp_path, options):
    path = tmp_path / "probes.json"
    preparing(False, path)[0].stored.write(HOT, "jit src nhwc", None, visits(1.0, 1.0))
    kernels, worker = preparing(False, path, **options)
    kernels.prepare(HOT)
    assert worker.asked == [("hot", None, False)]


def test_a_kept_kernel_that_is_slower_than_it_was_is_said_and_forgotten(tmp_path):
    path = tmp_path / "probes.json"
    preparing(False, path)[0].stored.write(HOT, "jit src nhwc", None, visits(1.0, 1.0))
    later, _ = preparing(False, path)
    later.prepare(HOT)
    warning = later.stored.write(HOT, "jit src nhwc", None, visits(1.3, 1.3))
    assert says(warning, "1.30", "--fresh")
    again, worker = preparing(False, path)
    again.prepare(HOT)
    assert worker.asked == [("hot", None, False)]


@pytest.mark.parametrize(
    ("beside", "factor", "kept"),
    [
        (1, 1.0, True),
        (3, 1.0, True),  # the other half of the rounds took as long
        (3, 1.5, False),
        (6, 1.0, False),
    ],
)
def test_a_kernel_is_kept_unless_neighbours_made_it_an_upper_bound(tmp_path, beside, factor, kept):
    path = tmp_path / "probes.json"
    kernels, _ = preparing(False, path)
    half = Interference(fma=0.5)
    times = (1.0, 1.06, 0.94, 1.0, 1.04, 0.96)
    quiet = visits(*times).visits
    slow = visits(*(factor * seconds for seconds in times)).visits
    disturbed = [msgspec.structs.replace(visit, interference=half) for visit in slow[:beside]]
    assert (
        kernels.stored.write(HOT, "jit src nhwc", None, Series([*disturbed, *quiet[beside:]]))
        is None
    )
    later, worker = preparing(False, path)
    later.prepare(HOT)
    assert worker.asked == [("hot", "jit src nhwc" if kept else None, False)]
    assert later.stored.repetitions([HOT]) == 4  # nor is a scatter beside a neighbour


def test_what_scatters_has_more_repetitions_in_the_next_run(tmp_path):
    path = tmp_path / "probes.json"
    kernels, _ = preparing(False, path)
    kernels.stored.write(HOT, "jit src nhwc", None, visits(1.0, 1.06, 0.94, 1.0, 1.04, 0.96))
    later, _ = preparing(False, path)
    assert later.stored.repetitions([HOT]) == 6
    assert (
        later.stored.repetitions([msgspec.structs.replace(HOT, backend="torch", mode="eager")]) == 4
    )
