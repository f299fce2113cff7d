import pytest
from said import says

from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import (
    flop_rate,
    lacks,
    other_accumulators,
    rated_clock,
    theoretical_peak,
)

# Dense TFLOP/s as the documents print them: V100, A100, H100 and Ada whitepapers, T4, H200 and
# L40S datasheets; written here a second time, so that a slip in the table is found.
PUBLISHED = [
    ("V100 SXM2 16GB", "fp32", 15.7),
    ("V100 SXM2 16GB", "fp16", 31.4),
    ("V100 SXM2 16GB", "fp16-tc", 125),
    ("T4", "fp32", 8.1),
    ("T4", "fp16-tc", 65),
    ("RTX 2080 Ti", "fp16-tc", 53.8),
    ("A100 SXM 80GB", "fp32", 19.5),
    ("A100 SXM 80GB", "fp16", 78),
    ("A100 SXM 80GB", "tf32", 156),
    ("A100 SXM 80GB", "bf16-tc", 312),
    ("RTX 3090", "fp32", 35.6),
    ("RTX 3090", "fp16-tc", 71),
    ("RTX 4090", "fp32", 82.6),
    ("RTX 4090", "tf32", 82.6),
    ("RTX 4090", "fp16-tc", 165.2),
    ("RTX 4090", "fp8-tc", 330.3),
    ("L40S", "fp32", 91.6),
    ("L40S", "tf32", 183),
    ("L40S", "bf16-tc", 362.05),
    ("L40S", "fp8-tc", 733),
    ("H100 SXM", "fp32", 66.9),
    ("H100 SXM", "fp16", 133.8),
    ("H100 SXM", "tf32", 494.7),
    ("H100 PCIe", "fp32", 51.2),
    ("H100 PCIe", "fp16-tc", 756),
    ("H200 SXM", "fp32", 67),
    ("H200 SXM", "bf16-tc", 989.5),
    ("H200 SXM", "fp8-tc", 1979),
    # Whitepapers "Turing", "A100", "Ada", "RTX Blackwell"; datasheets of H200, HGX B200, HGX B300,
    # GB200 and Jetson T5000.
    ("T4", "int8", 130),
    ("A100 SXM 80GB", "int8", 624),
    ("RTX 4090", "int8", 660.6),
    ("H200 SXM", "int8", 1979),
    ("B200", "int8", 4500),
    ("B200", "mxfp8-tc", 4500),
    ("B200", "nvfp4-tc", 9000),
    ("B300", "nvfp4-tc", 13500),
    ("GB200", "nvfp4-tc", 10000),
    ("RTX 5090", "int8", 838),
    ("RTX 5090", "nvfp4-tc", 1676),
    ("RTX 5080", "fp16-tc", 112.6),
    ("Jetson AGX Thor", "nvfp4-tc", 1035),
]


@pytest.mark.parametrize(("name", "precision", "tflops"), PUBLISHED)
def test_peaks_are_those_of_the_datasheets(sold, name, precision, tflops):
    accumulate = "float16" if precision == "fp16" else "float32"
    peak = theoretical_peak(sold(name), precision, accumulate=accumulate)
    assert peak.flops_per_s / 1e12 == pytest.approx(tflops, rel=0.02)


def test_the_derivation_names_the_factors(gpu):
    peak = theoretical_peak(gpu(), "bf16-tc")
    assert peak.derivation == (
        "132 SMs x 4096 FLOP/clock x 1.83 GHz (4 tensor cores x 512 multiply-adds x 2 FLOP)"
    )
    assert peak.flops_per_s == 132 * 4096 * 1.83e9
    assert peak.to_dict()["units"] == 132


@pytest.mark.parametrize(
    ("changes", "precision", "rated"),
    [
        ({}, "fp32", 1.98e9),
        ({}, "fp16-tc", 1.83e9),
        ({"name": "NVIDIA H300", "clock_hz": 2e9}, "fp16-tc", 2e9),
    ],
)
def test_the_clock_is_the_measured_one_or_that_which_the_units_are_rated_at(
    gpu, changes, precision, rated
):
    card = gpu(**changes)
    assert rated_clock(card, precision) == rated
    assert lacks(card, precision) is None
    assert theoretical_peak(gpu(), "bf16-tc", 1.5e9).flops_per_s == 132 * 4096 * 1.5e9


@pytest.mark.parametrize(
    ("name", "precision", "float32", "float16"),
    [
        ("RTX 4090", "fp16-tc", 512, 1024),
        ("L40S", "fp16-tc", 1024, 1024),  # the same chip without the halving
        # These know float32 accumulation only.
        ("RTX 4090", "bf16-tc", 512, 512),
        ("RTX 4090", "tf32", 256, 256),
        ("A100 SXM 40GB", "fp16", 128, 512),  # on CUDA cores
    ],
)
def test_rates_depend_on_the_accumulator(sold, name, precision, float32, float16):
    rates = [flop_rate(sold(name), precision, sums) for sums in ("float32", "float16")]
    assert [rate.flop_per_clock for rate in rates] == [float32, float16]


def test_half_the_rate_is_said_of_a_geforce_card(sold):
    half = theoretical_peak(sold("RTX 4090"), "fp16-tc")
    assert says(half.derivation, "half", "float32")
    assert half.accumulate == "float32"


@pytest.mark.parametrize(
    ("name", "flop_per_clock"),
    [("NVIDIA GeForce RTX 4070", 512), ("NVIDIA RTX 4000 Ada Generation", 1024)],
)
def test_an_unknown_product_is_judged_by_its_name(gpu, name, flop_per_clock):
    rate = flop_rate(gpu(name=name, capability="8.9"), "fp16-tc")
    assert rate.flop_per_clock == flop_per_clock
    assert rate.assumed


@pytest.mark.parametrize(
    ("name", "capability", "precision", "reason"),
    [
        (
            "Tesla V100",
            "7.0",
            "bf16-tc",
            "cuda:0 (Tesla V100, compute capability 7.0) has no bf16-tc: it needs 8.0",
        ),
        ("NVIDIA A100", "8.0", "fp8-tc", "it needs 8.9"),
        ("Tesla T4", "7.5", "tf32", "it needs 8.0"),
        ("GeForce GTX 1080 Ti", "6.1", "fp16-tc", "it needs 7.0"),
        ("GeForce GTX TITAN X", "5.2", "fp16", "it needs 6.0"),
        ("GeForce GTX 1660", "7.5", "fp16-tc", "this chip has no tensor cores"),
        ("Quadro T1000", "7.5", "fp16-tc", "this chip has no tensor cores"),
        ("Rubin", "13.0", "fp32", "is not in the table of FLOP rates"),
        ("NVIDIA H200", "9.0", "fp64", "fp64: no mode of GPUs"),
        ("NVIDIA H200", "9.0", "nvfp4-tc", "it needs 10.0"),
        ("Tesla V100", "7.0", "int8", "it needs 7.5"),
        # Not published to more than one digit, and less than a newer card's.
        ("NVIDIA B300", "10.3", "int8", "has no int8"),
    ],
)
def test_what_a_gpu_lacks_has_a_reason(gpu, name, capability, precision, reason):
    facts = gpu(name=name, capability=capability)
    assert reason in lacks(facts, precision)
    assert flop_rate(facts, precision) is None
    assert theoretical_peak(facts, precision) is None


def test_without_a_clock_there_is_no_peak():
    facts = GpuFacts(name="NVIDIA H300", capability="9.0", multiprocessors=1)
    assert theoretical_peak(facts, "fp32") is None
    assert theoretical_peak(facts, "fp32", 1e9).flops_per_s == 256e9


def test_the_other_accumulator_where_it_makes_a_difference(gpu, sold):
    found = other_accumulators(sold("RTX 4090"))
    assert {
        name: (peak.accumulate, round(peak.flops_per_s / 1e12)) for name, peak in found.items()
    } == {
        "fp16-tc": ("float16", 330),
        "fp8-tc": ("float16", 661),
    }
    found = other_accumulators(gpu())
    assert list(found) == ["fp16"]
    assert found["fp16"].accumulate == "float32"
    assert found["fp16"].flops_per_s == theoretical_peak(gpu(), "fp32").flops_per_s
