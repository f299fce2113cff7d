import pytest

from pydlbench.devices.cpu.peaks import theoretical_peak
from pydlbench.devices.findings import ImpossiblePeakError, TheoreticalPeak, check_peak
from pydlbench.errors import PydlbenchError


def test_the_peak_is_the_product_of_its_factors(machine):
    peak = theoretical_peak(machine(), "bf16", cores=2, hz=3.7e9)
    assert peak is not None
    assert peak.flops_per_s == 64 * 2 * 3.7e9
    assert peak.derivation.startswith("64 FLOP/cycle x 2 cores x 3.70 GHz (Zen 4: 2 x 256-bit")


def test_no_peak_in_a_precision_that_the_cpu_lacks(machine):
    assert theoretical_peak(machine(), "fp16", cores=2, hz=3.7e9) is None


def invented(flops_per_s):
    return TheoreticalPeak(
        flops_per_s=flops_per_s, flop_per_clock=32, units=1, hz=1e9, derivation="32 x 1"
    )


def test_an_impossible_peak_names_both_numbers():
    check_peak("fp32", 1.029e12, invented(1e12))  # three per cent above are tolerated
    with pytest.raises(ImpossiblePeakError, match=r"2\.00 TFLOP/s.*2\.00 x.*1\.00 TFLOP/s"):
        check_peak("fp32", 2e12, invented(1e12))
    assert issubclass(ImpossiblePeakError, PydlbenchError)
    assert issubclass(ImpossiblePeakError, AssertionError)
