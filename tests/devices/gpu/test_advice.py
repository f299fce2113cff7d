"""What a GPU's state and facts are warned of."""

import pytest

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
    ("told", "said"),
    [
        ({"processes": [11, 12]}, "2 processes beside this one on the GPU (pid 11, 12;"),
        ({"processes": [11]}, "1 process beside this one"),
        ({"processes": list(range(9))}, "pid 0, 1, 2, 3, ...;"),
        ({"throttle": ["idle", "hardware thermal slowdown"]}, "hardware thermal slowdown"),
        ({"throttle": ["application clocks"]}, "application clocks"),
        ({"temperature_c": 84}, "84 degrees C before anything runs"),
        ({"power_limit_w": 450.0}, "the power limit is 450 W where the card's own is 700 W"),
        ({"mig": True}, "132 of 132 multiprocessors"),
        ({"persistence": False}, "persistence mode is off"),
        ({"display": True}, "a display is attached"),
        ({"reason": "no NVML"}, "power, heat and throttling are not watched (no NVML)"),
    ],
)
def test_what_nvml_tells_becomes_advice(gpu, told, said):
    (symptom,) = symptoms(gpu(), {**QUIET, **told})
    assert said in symptom


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ecc": False}, "ECC is off"),
        ({"multiprocessors": 66}, "66 of 132 multiprocessors"),
        ({"integrated": True}, "shares its memory with the CPU"),
        ({"name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58}, "ECC is on"),
    ],
)
def test_what_the_facts_tell_becomes_advice(gpu, changes, said):
    (symptom,) = symptoms(gpu(**changes))
    assert said in symptom


def test_ecc_of_an_unknown_card_is_not_judged(gpu):
    assert symptoms(gpu(name="NVIDIA H300", ecc=False)) == []
    assert symptoms(gpu(name="NVIDIA GeForce RTX 4090", capability="8.9", ecc=False)) == []
