"""Invented records that the tests of results, report and command line share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.errors import PydlbenchError
from pydlbench.records.measurement import Correctness, Measurement, Peaks, Roofline, TimeSummary
from pydlbench.records.run import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip every test that is marked gpu if there is none: asked once, before anything runs.

    Before, because the driver reads CUDA_VISIBLE_DEVICES when it is first asked and never again,
    and other tests change that.
    """
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or (reason := _missing()) is None:
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason.partition(',')[0]}"))


def _missing() -> str | None:
    try:
        importlib.import_module("pydlbench._cuda").device_count()
    except ImportError as error:
        return f"pydlbench._cuda cannot be imported ({error})"
    except PydlbenchError as error:
        return str(error)
    return None


def _measurement(
    *, median: float = 0.05, roof: float | None = 0.045, **changes: Any
) -> Measurement:
    """An ``ok`` row of AlexNet's conv3: 28.7 GFLOP, a spread of 1 %, 90 % of its roof."""
    values: dict[str, Any] = {
        "layer": "alexnet/conv3",
        "kind": "conv2d",
        "problem": "mb128ic192ih13oc384oh13kh3ph1",
        "batch": 128,
        "pass_": "forward",
        "precision": "fp32",
        "accumulate": "float32",
        "library": "oneDNN 3.2.0",
        "algorithm": "brgconv:avx512_core",
        "layout": "nhwc",
        "status": "ok",
        "time": TimeSummary(
            median=median,
            ci_low=0.99 * median,
            ci_high=1.01 * median,
            q1=0.98 * median,
            q3=1.02 * median,
            min=0.97 * median,
            n=24,
        ),
        "flops": 28_708_700_160,
        "flops_executed": 25_760_956_416,
        "bytes": 52_600_000,
        "tflops": 28_708_700_160 / median / 1e12,
        "gbps": 52_600_000 / median / 1e9,
        "arithmetic_intensity": 489.8,
        "clock_hz": 4.31e9,
        "peak": Peaks(theoretical=0.59, measured=0.58),
        "roofline": None
        if roof is None
        else Roofline(bound="compute", time_s=roof, efficiency=roof / median),
        "correct": Correctness(status="ok", rel_error=2.1e-7, tolerance=1e-5),
        "stop_reason": "median known to 0.5 %",
        "threads": 2,
    }
    return Measurement(**{**values, **changes})


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU, only tests that are marked so may take it for the default device."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(autouse=True)
def store_path(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what tests measure out of the user's own store: a file for each test, made if used."""
    path = tmp_path_factory.mktemp("store") / "store.sqlite"
    monkeypatch.setenv("PYDLBENCH_STORE", str(path))
    # All tests share what was probed: less to wait for.
    probes = tmp_path_factory.getbasetemp() / "probes.json"
    monkeypatch.setenv("PYDLBENCH_PROBES", str(probes))
    return path


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """Build a measurement; ``median`` and ``roof`` in seconds, or any field."""
    return _measurement


@pytest.fixture
def without_time() -> Callable[..., Measurement]:
    """Build a skipped or failed measurement."""

    def build(status: str, reason: str, **changes: Any) -> Measurement:
        nothing = dict.fromkeys(
            ("time", "roofline", "tflops", "gbps", "clock_hz", "algorithm", "stop_reason")
        )
        values = {**nothing, "correct": Correctness(), "status": status, "reason": reason}
        return _measurement(**{**values, **changes})

    return build


@pytest.fixture
def run_record() -> RunRecord:
    """A run on an invented processor."""
    return RunRecord(
        id="20300102-030405-abcd",
        created_utc="2030-01-02T03:04:05Z",
        command=("pydlbench", "layers"),
        device={"name": "Invented 9000", "warnings": []},
        environment={"python": "3.11.2"},
    )
