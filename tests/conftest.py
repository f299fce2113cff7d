"""Which tests are in the default set, and invented records that several folders share.

The default set is what is run while one works: at most four minutes on two cores. ``deep`` is the
rest: whatever has a compiler build code (Inductor, XLA, C++), emulators, and of the products of
many parameters what is not needed to have seen each value, or of three and more each beside each
other one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sysconfig
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import invented_rows
import pytest
from hypothesis import HealthCheck, settings

from pydlbench.errors import PydlbenchError
from pydlbench.records.measurement import Correctness
from pydlbench.records.run import RunRecord

if TYPE_CHECKING:
    from pydlbench.records.measurement import Measurement


# Each process has CPUs of its own where there are enough: two that time kernels on the same ones
# disturb each other, and a disturbed visit is taken again.
if _worker := os.environ.get("PYTEST_XDIST_WORKER", ""):
    _cpus = sorted(os.sched_getaffinity(0))
    _processes = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    if len(_cpus) >= _processes:
        os.sched_setaffinity(0, _cpus[int(_worker.removeprefix("gw")) :: _processes])

# Where processes of tests share cores, threads of a kernel that wait for each other sleep, or each
# barrier costs the others' time slice. OpenMP reads this when the module is loaded; workers have
# a setting of their own.
with pytest.MonkeyPatch.context() as _environment:
    _environment.setenv("OMP_WAIT_POLICY", "passive")
    with contextlib.suppress(ImportError):
        importlib.import_module("pydlbench._cpu")

# Nearly all that is imported and collected lives to the end: until then no search for garbage.
gc.disable()

# How long an example takes is the machine's, and no test's.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell without job control starts what it has in the background with Ctrl-C ignored, and all that
# this starts inherits it; tests of Ctrl-C do not depend on how pytest was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Modes in which a framework has a compiler build each operator.
_COMPILED = ("compiled", "xla")
#: The folder of tests that a C++ compiler builds hosts and emulators for.
_BUILT = Path(__file__).parent / "cpp"
#: Tells the stores of one process's tests apart.
_NUMBERS = itertools.count()


@pytest.hookimpl(tryfirst=True)  # before pytest picks tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is deep by its parameters, and skip what needs a GPU if there is none.

    Of a product, tests whose code is built are a product of their own: each takes seconds, so that
    what would be deep of others is left out.

    Whether there is a GPU is asked once, before anything runs, because the driver reads
    CUDA_VISIBLE_DEVICES when it is first asked and never again, and other tests change that.
    """
    products = defaultdict(list)
    left_out: set[pytest.Item] = set()
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if built := _has_code_built(item):
            item.add_marker("deep")
        if item.get_closest_marker("product") and (built or not item.get_closest_marker("deep")):
            products[item.path, item.originalname, built].append(item)
    for (_, _, built), product in products.items():
        beyond = _beyond_pairs(product)
        if built:
            left_out.update(beyond)
            continue
        for item in beyond:
            item.add_marker("deep")
    items[:] = [item for item in items if item not in left_out]
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or (reason := _missing()) is None:
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason.partition(',')[0]}"))


def pytest_collection_finish() -> None:
    """Spare each search for garbage what lives to the end: tests, and the frameworks' modules."""
    gc.enable()
    gc.collect()
    gc.freeze()


def _has_code_built(item: pytest.Function) -> bool:
    """Return whether a compiler works for a test: Inductor, XLA or the C++ compiler."""
    if "cpp_build" in item.fixturenames or item.path.is_relative_to(_BUILT):
        return True
    return hasattr(item, "callspec") and item.callspec.params.get("mode") in _COMPILED


def _beyond_pairs(items: list[pytest.Function]) -> list[pytest.Function]:
    """Return the tests that can be left out of a product of parameters.

    What stays has each value of a parameter beside each value of every other one, wherever the
    product has the two together; of two parameters, which would be the whole product, each value.
    A parameter that has one value only, as ``mode`` has where no code is built, is none.
    The test that adds most is taken next, of equals the one whose values were seen least, and of
    these the first one, so that every process of a parallel run keeps the same ones.
    """
    marks = [mark.args[0] for mark in items[0].iter_markers("parametrize")]
    together = [one.split(",") if isinstance(one, str) else one for one in marks]
    groups = [tuple(name.strip() for name in names) for names in together]
    named = set().union(*groups)
    groups += [(name,) for name in items[0].callspec.params if name not in named]  # of fixtures
    # A value is the same object in every test that has it; some cannot be compared.
    values = {
        names: {item: tuple(id(item.callspec.params[name]) for name in names) for item in items}
        for names in groups
    }
    varying = [names for names in groups if len(set(values[names].values())) > 1]
    own = {item: [(names, values[names][item]) for names in varying] for item in items}
    size = 2 if len(varying) > 2 else 1
    missing = {item: set(itertools.combinations(own[item], size)) for item in items if varying}
    left = dict.fromkeys(items)
    seen: Counter[Any] = Counter()
    while missing:
        best = max(
            missing,
            key=lambda item: (len(missing[item]), -sum(seen[one] for one in own[item])),
        )
        del left[best]
        seen.update(own[best])
        added = missing[best]
        # Whoever adds nothing now never will.
        missing = {item: rest for item, own_ in missing.items() if (rest := own_ - added)}
    return list(left)


def _missing() -> str | None:
    try:
        importlib.import_module("pydlbench._cuda").device_count()
    except ImportError as error:
        return f"pydlbench._cuda cannot be imported ({error})"
    except PydlbenchError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def cpp_build(pytestconfig):
    """Build the C++ tests in ``tests/cpp`` and return where; later sessions compile what changed.

    Sessions and workers at the same time wait for one another. ``tests/cpp/sanitize`` has built
    them already, under sanitizers.
    """
    if "PYDLBENCH_CPP_BUILD" in os.environ:
        return Path(os.environ["PYDLBENCH_CPP_BUILD"])
    cmake = shutil.which(
        "cmake", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    )
    if cmake is None:
        pytest.fail("no CMake, which the C++ tests are built with; pip install 'pydlbench[test]'")
    build: Path = pytestconfig.cache.mkdir("cpp_tests")
    headers = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))
    configure = ["-S", str(Path(__file__).parent / "cpp"), "-B", str(build)]
    configure.append(f"-DPYDLBENCH_HEADERS={';'.join(map(str, headers))}")
    # Without a number make starts all of them at once, whatever memory they take.
    compile_ = ["--build", str(build), "--parallel", str(len(os.sched_getaffinity(0)))]
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments in (configure, compile_):
            done = subprocess.run([cmake, *arguments], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.fail(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}", pytrace=False)
    return build


@pytest.fixture(scope="session")
def cpp_library(cpp_build):
    """The functions of ``tests/cpp``: code under test, to be given data from NumPy."""
    return ctypes.CDLL(str(cpp_build / "libpydlbench_tests.so"))


@pytest.fixture(autouse=True)
def _on_the_cpu(request, monkeypatch):
    """Where there is a GPU, only tests that are marked so may take it for the default device."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session", autouse=True)
def _own_files(tmp_path_factory):
    """Keep what is measured and probed out of the user's own files, also for wider fixtures."""
    base = tmp_path_factory.getbasetemp()
    # All tests, of all processes of a parallel run, share what was probed: less to wait for.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYDLBENCH_STORE", str(base / "store.sqlite"))
        patch.setenv("PYDLBENCH_PROBES", str(shared / "probes.json"))
        yield base


@pytest.fixture(autouse=True)
def store_path(_own_files, monkeypatch):
    """Give each test a store of its own, which is made if it is used."""
    path = _own_files / f"store-{next(_NUMBERS)}.sqlite"
    monkeypatch.setenv("PYDLBENCH_STORE", str(path))
    return path


@pytest.fixture(scope="session")
def measurement():
    """Build a measurement; ``median`` and ``roof`` in seconds, or any field."""
    return invented_rows.measurement


@pytest.fixture
def without_time():
    """Build a skipped or failed measurement."""

    def build(status: str, reason: str, **changes: Any) -> Measurement:
        nothing = dict.fromkeys(
            ("time", "roofline", "tflops", "gbps", "clock_hz", "algorithm", "stop_reason")
        )
        values = {**nothing, "correct": Correctness(), "status": status, "reason": reason}
        return invented_rows.measurement(**{**values, **changes})

    return build


@pytest.fixture
def run_record():
    """A run on an invented processor."""
    return RunRecord(
        id="20300102-030405-abcd",
        created_utc="2030-01-02T03:04:05Z",
        command=("pydlbench", "layers"),
        device={"name": "Invented 9000", "warnings": []},
        environment={"python": "3.11.2"},
    )


@functools.cache
def created(name: str) -> Any:
    """Return a framework's backend on the CPU; one is imported where a test asks for it."""
    return importlib.import_module(f"pydlbench.backends.{name}.backend").create("cpu")


@pytest.fixture
def backend_of():
    """Return a framework's backend by name, or skip where it is not installed."""

    def get(name: str) -> Any:
        if not importlib.util.find_spec(name):
            pytest.skip(f"{name} is not installed")
        return created(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's imports are full of deprecations
        yield get
