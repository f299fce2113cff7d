"""Warnings about a GPU's state and facts."""

import pytest
from said import says

from pydlbench.devices.findings import PrecisionPeak
from pydlbench.devices.gpu.advice import gpu_advice, gpu_peak_advice
from pydlbench.devices.gpu.peaks import theoretical_peak

QUIET = {
    "reason": None,
    "power_limit_w": 700.0,
    "mig": False,
    "persistence": True,
    "temperature_c": 35,
    "throttle": ["idle", "power cap"],
    "processes": [],
}


def symptoms(facts, nvml=None):
    return [advice.symptom for advice in gpu_advice(facts, nvml)]


def test_a_quiet_card_needs_no_advice(gpu):
    assert symptoms(gpu(), QUIET) == []
    assert symptoms(gpu()) == []
    assert symptoms(gpu(), dict.fromkeys(QUIET)) == []


@pytest.mark.parametrize(
    ("changes", "nvml", "values"),
    [
        ({}, {"processes": [11, 12]}, ["2 processes", "11, 12"]),
        ({}, {"processes": [11]}, ["1 process", "11"]),
        ({}, {"processes": list(range(9))}, ["9 processes", "0, 1, 2, 3, ..."]),
        ({}, {"throttle": ["idle", "hardware thermal slowdown"]}, ["hardware thermal slowdown"]),
        ({}, {"throttle": ["application clocks"]}, ["application clocks"]),
        ({}, {"temperature_c": 84}, ["84 degrees C"]),
        ({}, {"power_limit_w": 450.0}, ["450 W", "700 W"]),
        ({}, {"mig": True}, ["132 of 132 multiprocessors"]),
        ({}, {"persistence": False}, ["persistence mode"]),
        ({}, {"display": True}, ["display"]),
        ({}, {"exclusive": True}, ["one process at a time"]),
        ({}, {"reason": "no NVML"}, ["no NVML"]),
        ({"ecc": False}, {}, ["ECC is off"]),
        ({"multiprocessors": 66}, {}, ["66 of 132 multiprocessors"]),
        ({"integrated": True}, {}, ["shares its memory"]),
        ({"name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58}, {}, ["ECC is on"]),
    ],
)
def test_each_symptom_is_one_warning(gpu, changes, nvml, values):
    state = {} if "name" in changes else {**QUIET, **nvml}
    (symptom,) = symptoms(gpu(**changes), state)
    assert says(symptom, *values)


def test_ecc_of_an_unknown_card_is_not_judged(gpu):
    assert symptoms(gpu(name="NVIDIA H300", ecc=False)) == []
    assert symptoms(gpu(name="NVIDIA GeForce RTX 4090", capability="8.9", ecc=False)) == []


def test_a_command_for_the_card_names_its_uuid(gpu):
    """The driver's numbers of cards are not those of CUDA, which CUDA_VISIBLE_DEVICES changes."""
    facts = gpu(index=0, uuid="GPU-7")
    (exclusive,) = gpu_advice(facts, {**QUIET, "exclusive": True})
    assert "-i GPU-7 " in exclusive.remedy
    peak = theoretical_peak(facts, "fp32", 1.2e9)
    slow = PrecisionPeak(
        precision="fp32", measured=peak.flops_per_s, clock_hz=1.2e9, theoretical=peak
    )
    assert "-i GPU-7 " in gpu_peak_advice(facts, slow, 1.98e9).remedy
