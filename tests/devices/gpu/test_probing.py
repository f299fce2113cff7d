"""Which peaks and bandwidths of a GPU are probed, and what stands for those that are not."""

from collections import Counter

import pytest
from said import says

from pydlbench.devices.gpu.peaks import accumulator, theoretical_peak
from pydlbench.devices.gpu.record import (
    extend_record,
    l2_working_set,
    memory_working_set,
    start_record,
)
from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError
from pydlbench.words import GPU_PRECISIONS

CLOCK = 1.7e9
LIBRARIES = {
    "cudnn": {"version": "9.28.0", "path": "/lib/libcudnn.so.9"},
    "cublaslt": {"version": "13.1.0", "path": ""},
}


class Probes:
    """Answers like the native worker; the arithmetic units reach ``share`` of the theory."""

    def __init__(self, facts, share=0.97, clock=CLOCK):
        self.facts, self.share, self.clock = facts, share, clock
        self.calls = []

    def __call__(self, name, **arguments):
        self.calls.append((name, arguments))
        if name == "launch":
            times = {"single_kernel_s": 4e-6, "empty_kernel_s": 2e-6, "graph_node_s": 1e-6}
            return {**times, "host_s": 3e-6, "more": 1}
        if name == "bandwidth":
            rate = 4e12 if arguments["bytes"] >= 1 << 30 else 9e12
        else:
            rate = self.rate(**arguments)
        return {
            "per_second": rate,
            "median_per_second": rate,
            "clock_hz": self.clock,
            "median_clock_hz": self.clock,
            "seconds": 0.1,
            "rounds": 9,
            "kernel": name,
        }

    def rate(self, precision, **_arguments):
        peak = theoretical_peak(self.facts, precision, self.clock, accumulator(precision))
        return 1e12 if peak is None else self.share * peak.flops_per_s

    def named(self, name):
        return [arguments for called, arguments in self.calls if called == name]


def extend(probe, precisions, record=None, **more):
    record = record or start_record(probe.facts)
    return extend_record(record, precisions, LIBRARIES, probe, **more)


def test_everything_is_probed_once(gpu):
    probe = Probes(gpu())
    record = extend(probe, GPU_PRECISIONS)
    # Two tries of the instruction peaks, three windows of each bandwidth,
    # and one of each working set between L2 and memory.
    assert len(probe.calls) == (2 * 2 + 5) + 3 * (2 * 3) + 4 * 3 + 1
    assert {call["precision"] for call in probe.named("fma_peak")} == {"fp32", "fp16"}
    assert [call["precision"] for call in probe.named("gemm_peak")] == [
        "tf32",
        "fp16-tc",
        "bf16-tc",
        "fp8-tc",
        "fp8-tc-fast",
    ]
    assert extend(probe, GPU_PRECISIONS, record) == record
    assert len(probe.calls) == 40
    assert record.launch_s == 2e-6
    assert record.clock_hz == CLOCK
    assert record.warnings == ()


def test_a_mode_that_the_card_lacks_is_a_reason_and_no_probe(gpu):
    probe = Probes(gpu(name="Tesla V100-SXM2-16GB", capability="7.0", multiprocessors=80))
    record = extend(probe, ["bf16-tc"], levels=())
    assert probe.named("gemm_peak") == []
    reason = record.peak("bf16-tc").reason
    assert says(reason, "cuda:0", "Tesla V100-SXM2-16GB", "7.0", "bf16-tc", "8.0")


@pytest.mark.parametrize(
    "error", [UnsupportedError, PrimitiveError, InsufficientMemoryError], ids=lambda e: e.__name__
)
def test_a_product_that_the_library_cannot_give_is_a_reason(gpu, error):
    probe = Probes(gpu())

    def ask(name, **arguments):
        if name == "gemm_peak":
            raise error("cuBLASLt has no such product")
        return probe(name, **arguments)

    record = extend_record(start_record(gpu()), ["fp8-tc", "fp32"], {}, ask, levels=())
    assert record.peak("fp8-tc").reason == "cuBLASLt has no such product"
    assert record.peak("fp8-tc").nominal is not None
    assert record.peak("fp32").measured is not None


def test_an_unknown_capability_is_measured_without_a_theory(gpu):
    probe = Probes(gpu(name="NVIDIA Thor", capability="99.0"))
    record = extend(probe, ["fp32"], levels=())
    assert record.peak("fp32").measured == 1e12
    assert record.peak("fp32").theoretical is None
    assert any(says(advice.symptom, "FLOP rates") for advice in record.warnings)


def test_an_impossible_peak_costs_its_own_mode_only(gpu):
    class Fp32Wrong(Probes):
        def rate(self, precision, **more):
            return super().rate(precision, **more) * (1.1 if precision == "fp32" else 1.0)

    record = extend(Fp32Wrong(gpu()), ["fp32", "tf32"])
    assert record.peak("fp32").measured is None
    assert says(record.peak("fp32").reason, "fp32", "1.07 x", "FLOP rates")
    assert record.peak("tf32").measured
    assert record.bandwidths
    assert record.launch_s
    with pytest.raises(UnsupportedError, match="the probe measured"):
        record.limits("fp32")


def test_without_a_bandwidth_probe_the_rest_is_kept(gpu):
    probe = Probes(gpu())

    def ask(name, **arguments):
        if name in ("bandwidth", "launch"):
            raise UnsupportedError(f"{name}: not here")
        return probe(name, **arguments)

    record = extend_record(start_record(gpu()), ["fp32"], {}, ask)
    assert record.peak("fp32").measured
    assert record.bandwidth_reason == "bandwidth: not here"
    assert record.launch_s is None


def test_libraries_are_added_as_they_are_loaded(gpu):
    probe = Probes(gpu())
    record = extend_record(start_record(gpu()), (), {"built with": "13.0"}, probe, levels=())
    record = extend(probe, (), record, levels=())
    assert record.libraries == {
        "built with": "13.0",
        "cuDNN": "9.28.0",
        "cuDNN path": "/lib/libcudnn.so.9",
        "cuBLASLt": "13.1.0",
    }


class Jumping(Probes):
    """Arithmetic units that reach one share of the theory after the other; the last one stays."""

    def __init__(self, facts, shares):
        super().__init__(facts)
        self.shares = list(shares)

    def rate(self, precision, **arguments):
        self.share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        return super().rate(precision, **arguments)


@pytest.mark.parametrize("precision", ["fp32", "bf16-tc"])
def test_a_peak_beyond_theory_is_probed_again(gpu, monkeypatch, precision):
    monkeypatch.setattr("pydlbench.devices.bandwidths.time.sleep", lambda _: None)
    probe = Jumping(gpu(), [1.2, 1.2, 0.9])
    peak = extend(probe, [precision], levels=()).peak(precision)
    assert peak.measured / peak.theoretical.flops_per_s == pytest.approx(0.9)
    assert peak.impossible == 2
    assert extend(Jumping(gpu(), [1.2]), [precision], levels=()).peak(precision).measured is None


@pytest.mark.parametrize(
    ("name", "share", "clock", "precision", "values"),
    [
        ("NVIDIA H300", 1.5, CLOCK, "fp32", ["1.50 x"]),
        ("NVIDIA H200", 0.45, CLOCK, "bf16-tc", ["bf16-tc", "45 %"]),
        ("NVIDIA H200", 0.45, CLOCK, "fp8-tc", None),
        ("NVIDIA H200", 0.35, CLOCK, "fp8-tc", ["fp8-tc", "35 %"]),
        ("NVIDIA H200", 0.85, CLOCK, "fp32", ["fp32", "85 %"]),
        ("NVIDIA H200", 0.92, CLOCK, "fp32", None),
        ("NVIDIA H200", 0.8, CLOCK, "tf32", None),
        ("NVIDIA H200", 0.5, CLOCK, "tf32", ["tf32", "50 %"]),
        ("NVIDIA H200", 0.97, 1.2e9, "fp32", ["1.20 GHz", "61 %", "1.98 GHz"]),
        # Large products are at the power cap by nature.
        ("NVIDIA H200", 0.97, 1.2e9, "bf16-tc", None),
    ],
)
def test_what_falls_short_or_beats_an_assumption_is_a_warning(
    gpu, name, share, clock, precision, values
):
    probe = Probes(gpu(name=name), share=share, clock=clock)
    symptoms = [advice.symptom for advice in extend(probe, [precision], levels=()).warnings]
    assert len(symptoms) == (values is not None)
    assert all(says(symptom, *values) for symptom in symptoms)


@pytest.mark.parametrize(
    ("changes", "memory", "l2"),
    [
        ({}, 1 << 30, 20 << 20),
        ({"l2_bytes": 512 << 20}, 2 << 30, 2730 << 16),
        ({"memory_bytes": 2 << 30}, 512 << 20, 20 << 20),
        ({"l2_bytes": 4 << 20}, 1 << 30, 21 << 16),
        ({"l2_bytes": 0}, 1 << 30, None),
    ],
)
def test_working_sets_suit_the_levels(gpu, changes, memory, l2):
    probe = Probes(gpu(**changes))
    record = extend(probe, (), patterns=("read", "copy", "triad"))
    assert {call["kind"] for call in probe.named("bandwidth")} == {"read", "copy"}
    sizes = {item.level: item.working_set_bytes for item in record.bandwidths}
    assert (sizes["memory"], sizes.get("l2")) == (memory, l2)
    assert memory_working_set(gpu(**changes)) == memory
    assert l2_working_set(gpu(**changes)) == l2
    assert Counter(item.level for item in record.bandwidths) == dict.fromkeys(sizes, 2)
