"""Warnings about a GPU's state and facts."""

import pytest
from said import says

from pydlbench.devices.gpu.advice import gpu_advice

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
