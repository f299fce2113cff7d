"""Backends of other packages: cheats are refused, honest kernels accepted."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from pydlbench import plugins
from pydlbench.backends import capabilities
from pydlbench.cli import main
from pydlbench.errors import RefusedKernelError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import ChunkRequest

sys.path.insert(0, str(Path(__file__).parent))
from planted_backend import CHEATS, HONEST, UNSUPPORTED

sys.path.pop(0)
RELU = build_layer("relu", batch=2, channels=4, height=5, width=6)


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    """Have the package found by its entry point, and forgotten behind the test."""
    about = tmp_path / "planted-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pydlbench.backends]\nplanted = planted_backend\n")
    caches = (plugins.modules, capabilities.all_capabilities, capabilities._all_declarations)
    for folder in (tmp_path, Path(__file__).parent):
        monkeypatch.syspath_prepend(str(folder))
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def measured(mode):
    """Prepare and time a kernel as a session does; return its facts and samples."""
    spec = KernelSpec(layer=RELU, backend="planted", mode=mode)
    with Session(RunnerOptions(threads=1, keep_probes=False)) as session:
        kernel = session.prepare(spec)
        chunks = [kernel.sample(ChunkRequest(samples=6, untimed=2)) for _ in range(4)]
    return kernel.facts, [seconds for chunk in chunks for seconds in chunk.seconds]


@pytest.mark.parametrize("mode", CHEATS)
def test_a_cheat_is_refused(mode, monkeypatch):
    if mode == "hook_at_its_import" and not hasattr(sys, "monitoring"):
        pytest.skip("sys.monitoring is of Python 3.12")
    if mode == "other_cpus" and os.cpu_count() == 1:
        pytest.skip("there is no other CPU")
    monkeypatch.setenv("PLANTED", mode)
    with pytest.raises(RefusedKernelError):
        measured(mode)


@pytest.mark.parametrize("mode", UNSUPPORTED)
def test_a_kernel_whose_results_cannot_be_compared_is_skipped(mode):
    with pytest.raises(UnsupportedError, match=r"nearest: .* operands"):
        measured(mode)


@pytest.mark.parametrize("mode", HONEST)
def test_an_honest_kernel_is_accepted(mode):
    facts, seconds = measured(mode)
    assert facts.correct.status == "ok"
    assert len(seconds) == 24
    assert min(seconds) > 0


@pytest.mark.deep
def test_layers_fails_a_cheat_and_ranks_the_others(tmp_path):
    words = ["--shape", "relu:mb2ic4ih5iw6", "--backend", "native,planted", "--quiet"]
    modes = ["--mode", "numpy,in_parts,only_the_first_calls,own_samples"]
    how = ["--repetitions", "1", "--budget", "0.02", "--store", "none", "--threads", "1"]
    code = main(["layers", *words, *modes, *how, "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())["measurements"]
    found = {row["mode"]: row["status"] for row in rows if row["backend"] == "planted"}
    honest, cheats = ("numpy", "in_parts"), ("only_the_first_calls", "own_samples")
    assert (code, found) == (0, dict.fromkeys(honest, "ok") | dict.fromkeys(cheats, "failed"))
    assert not any(row.get("time") for row in rows if row["status"] == "failed")
