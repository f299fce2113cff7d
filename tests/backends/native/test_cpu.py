"""The native CPU backend in this process, on layers that take microseconds."""

import dataclasses
import json
import os
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.backends import autotune
from pydlbench.backends.base import KernelFacts, Preparation
from pydlbench.backends.native import cpu
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.verify import Verdict
from pydlbench.workers.channel import decode, encode

CONV = build_layer("conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1)
GEMM = build_layer("gemm", m=8, k=32, n=16)
POOL = build_layer("pool", batch=2, channels=16, in_size=9, kernel=3, stride=2)
TINY = build_layer("relu", batch=1, channels=8, height=3, width=3)


@pytest.fixture(scope="module")
def backend():
    return cpu.create()


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Short probes and finals: who wins does not matter here."""
    quick = dataclasses.replace(autotune.CPU_EFFORT, probe_s=0.001, finals_s=0.001)
    monkeypatch.setattr(autotune, "CPU_EFFORT", quick)


def prepare(backend, layer=CONV, preparation=None, **words):
    return backend.prepare(KernelSpec(layer=layer, **words), preparation or Preparation())


@pytest.mark.parametrize(
    ("layer", "pass_"),
    [(layer, pass_) for layer in (CONV, GEMM, POOL) for pass_ in layer.passes],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_prepared_kernel_is_verified_and_runs(backend, layer, pass_):
    kernel = prepare(backend, layer, pass_=pass_)
    facts = kernel.facts
    assert facts.correct.status == "ok"
    assert facts.correct.rel_error <= facts.correct.tolerance
    assert facts.library == f"oneDNN {_cpu.library()['version']}"
    assert facts.workspace_bytes >= 0
    assert facts.setup_s > 0
    chunk = kernel.sample(ChunkRequest(samples=4, inner=2, untimed=1))
    assert len(chunk.seconds) == 4
    assert chunk.voluntary is not None
    assert chunk.involuntary is not None
    assert min(chunk.seconds) > 0
    assert chunk.threads == _cpu.library()["threads"]


@pytest.mark.parametrize("pass_", GEMM.passes)
@pytest.mark.parametrize("batch_count", [1, 3])
@pytest.mark.parametrize("order", ["kn", "nk"])
def test_the_weights_of_a_product_lie_as_it_asks(backend, pass_, batch_count, order):
    layer = build_layer("gemm", m=8, k=16, n=16, batch_count=batch_count, weights_tag=order)
    facts = prepare(backend, layer, pass_=pass_).facts
    assert facts.correct.status == "ok"
    letters = "g" * (batch_count > 1) + order
    assert {f"weights {letters}" in one["layout"] for one in facts.candidates} == {True}


def test_the_facts_cross_the_wire(backend):
    facts = prepare(backend).facts
    read = msgspec.convert(decode(encode({"ok": facts}))["ok"], KernelFacts)
    assert (read.correct.status, read.correct.rel_error) == ("ok", facts.correct.rel_error)
    assert dataclasses.replace(read, correct=facts.correct) == facts


def test_the_winner_is_one_of_the_candidates_and_marked(backend):
    facts = prepare(backend).facts
    (chosen,) = [entry for entry in facts.candidates if entry["chosen"]]
    assert (chosen["algorithm"], chosen["layout"]) == (facts.algorithm, facts.layout)
    assert not any("ref" in entry["algorithm"] for entry in facts.candidates)


def test_all_candidates_are_timed_and_verified_on_request(backend):
    facts = prepare(backend, preparation=Preparation(all_candidates=True)).facts
    assert len(facts.candidates) > 5
    for entry in facts.candidates:
        assert entry["status"] == "ok"
        assert entry["correct"]["status"] == "ok"
        assert len(entry["seconds"]) >= 1
        assert isinstance(entry["reorder_s"], dict)


@pytest.mark.parametrize("layout", ["any", "nchw", "nhwc", "blocked"])
@pytest.mark.parametrize("layer", [CONV, GEMM, POOL], ids=lambda layer: layer.kind)
def test_a_layout_restricts_the_choice(backend, layer, layout):
    facts = prepare(backend, layer, layout=layout).facts
    assert facts.correct.status == "ok"
    if layer.kind != "gemm" and layout in ("nchw", "nhwc"):
        assert {f"{role} {layout}" in facts.layout for role in ("src", "dst")} == {True}
    if layer.kind != "gemm" and layout == "blocked":
        assert "dst nC" in facts.layout


@pytest.mark.parametrize("cache", ["weights-cold", "all-cold"])
def test_cold_caches_are_prepared(backend, cache):
    facts = prepare(backend, cache=cache, preparation=Preparation(cold_bytes=500_000)).facts
    assert facts.correct.status == "ok"


def test_another_seed_is_other_data(backend):
    errors = {
        prepare(backend, layout="nhwc", preparation=Preparation(seed=seed)).facts.correct.rel_error
        for seed in (1, 2, 3)
    }
    assert len(errors) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"precision": "tf32"}, "tf32 is a GPU mode; on a CPU there is: fp32, bf16, fp16"),
        ({"layer": POOL, "pass_": "backward-weights"}, "pool2d has no backward-weights pass"),
        ({"layer": POOL, "cache": "weights-cold"}, "no weights to keep out of the cache"),
    ],
)
def test_what_cannot_be_done_is_unsupported(backend, words, message):
    with pytest.raises(UnsupportedError, match=message):
        prepare(backend, **words)


def test_what_is_too_small_to_be_cold_is_unsupported(backend):
    with pytest.raises(UnsupportedError, match="too small to be kept out of the cache"):
        prepare(backend, TINY, Preparation(cold_bytes=1 << 30), cache="all-cold")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_that_would_be_emulated_is_unsupported(backend, precision, monkeypatch):
    monkeypatch.setattr(backend, "_isa", frozenset(["avx2", "fma"]))
    with pytest.raises(UnsupportedError, match=f"{precision}: .*avx512_{precision}"):
        prepare(backend, precision=precision)


def test_a_wrong_candidate_is_passed_over(backend, monkeypatch):
    """The first that is asked about gives a wrong result; the kernel returned is another one."""
    true_verify = cpu.verify
    asked = []

    def suspicious(*arguments, **options):
        asked.append(options["algorithm"])
        verdict = true_verify(*arguments, **options)
        if len(asked) > 1:
            return verdict
        return Verdict(
            status="failed",
            rel_error=1.0,
            tolerance=1e-6,
            detail="dst[0] is 2, expected 1",
            unwritten=0,
            points=1,
            checksums=0,
        )

    monkeypatch.setattr(cpu, "verify", suspicious)
    facts = prepare(backend).facts
    assert len(asked) == 2
    assert facts.correct.status == "ok"
    (wrong,) = [entry for entry in facts.candidates if entry["status"] == "failed"]
    assert wrong["reason"] == "dst[0] is 2, expected 1"
    assert not wrong["chosen"]


def test_no_right_candidate_is_a_failure_with_the_reason(backend, monkeypatch):
    """A kernel that leaves part of its output unwritten: NaN, by the poison."""
    monkeypatch.setattr(
        cpu,
        "verify",
        lambda *_, **__: Verdict(
            status="failed",
            rel_error=None,
            tolerance=1e-6,
            detail="3 elements never written",
            unwritten=3,
            points=0,
            checksums=0,
        ),
    )
    with pytest.raises(PrimitiveError, match="no candidate gives a right result: 3 elements never"):
        prepare(backend)


def test_the_real_verification_sees_an_unwritten_tile_and_a_wrong_index(backend, monkeypatch):
    """Faults planted in what the kernels wrote, between run and verification."""
    true_verify = cpu.verify
    details = []

    def planted(fault):
        def check(layer, pass_, precision, inputs, output, **options):
            output = np.array(output)
            fault(output)
            verdict = true_verify(layer, pass_, precision, inputs, output, **options)
            details.append(verdict.detail)
            return verdict

        return check

    def tile(output):
        output[1, 16:, 3, 4:6] = np.nan

    def swap(output):
        output[0, :, [1, 2], 3] = output[0, :, [2, 1], 3]

    for fault, expected in ((tile, "32 of 3136 elements of dst never written"), (swap, "expected")):
        details.clear()
        monkeypatch.setattr(cpu, "verify", planted(fault))
        with pytest.raises(PrimitiveError, match="no candidate gives a right result"):
            prepare(backend)
        assert all(expected in detail for detail in details)


def test_probes_by_name(backend):
    cpus = [min(os.sched_getaffinity(0))]
    peak = backend.probe("fma_peak", {"precision": "fp32", "cpus": cpus, "seconds": 0.01})
    assert peak["per_second"] >= peak["median_per_second"] > 0
    speed = backend.probe(
        "bandwidth", {"kind": "read", "bytes": 1 << 20, "cpus": cpus, "seconds": 0.01}
    )
    assert speed["per_second"] > 0
    assert json.loads(json.dumps(speed)) == speed
    with pytest.raises(UnsupportedError, match="probe: latency"):
        backend.probe("latency", {})


BATCHNORM = build_layer("batchnorm", batch=2, channels=16, height=5, width=5)


@pytest.mark.parametrize("layout", ["best", "any", "nchw", "nhwc", "blocked"])
@pytest.mark.parametrize("op", ["relu", "lrn", "batchnorm", "add", "bias"])
def test_memory_bound_layers_come_in_all_layouts(backend, op, layout):
    layer = build_layer(op, batch=2, channels=16, height=5, width=5)
    facts = prepare(backend, layer, layout=layout).facts
    assert facts.correct.status == "ok"
    assert "not compared" not in facts.correct.detail
    own = facts.algorithm.startswith("own:")
    assert facts.library.startswith("pydlbench" if own else "oneDNN")
    if layout in ("nchw", "nhwc"):
        assert f"dst {layout}" in facts.layout


@pytest.mark.parametrize("text", ["momentum:ic1000", "l2:ic1000", "softmax-xent:mb4ic10"])
def test_vectors_have_one_layout(backend, text):
    facts = prepare(backend, parse_problem(text), layout="nhwc").facts
    assert (facts.correct.status, facts.layout[:3]) in (("ok", "pla"), ("ok", "src"))
    with pytest.raises(UnsupportedError, match="--layout blocked"):
        prepare(backend, parse_problem(text), layout="blocked")


@pytest.mark.parametrize("role", BATCHNORM.writes("forward", "training"))
def test_a_fault_in_any_result_of_several_is_seen(backend, monkeypatch, role):
    """Planted in what the kernels wrote, between run and verification."""
    true_verify = cpu.verify

    def planted(layer, pass_, precision, inputs, output, **options):
        results = {"dst": np.array(output), **options.pop("extra")}
        results[role] = np.array(results[role])
        results[role].flat[-1] += 0.01
        output = results.pop("dst")
        return true_verify(layer, pass_, precision, inputs, output, extra=results, **options)

    monkeypatch.setattr(cpu, "verify", planted)
    with pytest.raises(PrimitiveError, match=rf"result: {role}\["):
        prepare(backend, BATCHNORM, propagation="training")


def test_bursts_of_an_unknown_core_judge_by_the_same_burst(monkeypatch, tmp_path):
    """Of one process whose cores were shared all along, and of one whose clock was misread once."""
    monkeypatch.setenv("PYDLBENCH_PROBES", str(tmp_path / "probes.json"))
    monkeypatch.setattr(cpu, "flop_rate", lambda *_: None)
    shared, alone = cpu.FmaBursts([0]), cpu.FmaBursts([0])
    assert shared.shares([32e9], 1e9) == (1.0,)
    assert alone.shares([64e9, 63e9, 640e9], 1e9)[1] == pytest.approx(63 / 64)
    assert shared.shares([32e9], 1e9) == (0.5,)
    assert cpu.FmaBursts([0]).shares([64e9], 1e9) == (1.0,)


def test_the_bursts_of_a_known_core_are_held_against_its_design(monkeypatch):
    rate = SimpleNamespace(flop_per_clock=64, assumed=False)
    monkeypatch.setattr(cpu, "flop_rate", lambda *_: rate)
    bursts = cpu.FmaBursts([0])
    assert bursts.shares([128e9, 64e9], 1e9) == (2.0, 1.0)
    assert bursts.shares([32e9], 1e9) == (0.5,)
