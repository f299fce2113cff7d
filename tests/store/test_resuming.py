"""Whether a run may go on: the same request on the same machine."""

import pytest

from pydlbench.errors import UsageError
from pydlbench.store.resume import refuse_differences

CPU = {"name": "A", "facts": {"model": 1, "memory_available_bytes": 5}}
GPU = {"name": "H200", "facts": {}, "host": CPU}


@pytest.mark.parametrize(
    ("device", "environment", "request_", "message"),
    [
        ({**CPU, "name": "B"}, {}, {}, "the machine is not the same: name was A, is B"),
        ({**CPU, "facts": {"model": 2}}, {}, {}, "the machine is not the same: model was 1, is 2"),
        (
            {**CPU, "facts": {"model": 1, "affinity": [0]}},
            {},
            {},
            "the machine is not the same: usable CPUs was 0, is 1",
        ),
        (CPU, {"packages": {"torch": "2.14"}}, {}, "the library is not the same: torch was 2.13"),
        (CPU, {"variables": {"OMP": "1"}}, {}, "the variable is not the same: OMP was nothing"),
        (CPU, {}, {"pass": ["forward"]}, "the request is not the same: pass was nothing, is"),
        (CPU, {}, {"seed": 1}, "seed was 0, is 1"),
    ],
)
def test_what_differs_is_named(run_of, device, environment, request_, message):
    packages = {"packages": {"torch": "2.13"}, "variables": {}}
    before = run_of(device=CPU, environment=packages)
    now = run_of(device=device, environment={**packages, **environment})
    with pytest.raises(UsageError) as caught:
        refuse_differences(before, now, {"seed": 0}, {"seed": 0, **request_})
    assert message in str(caught.value)
    assert "nearest: start a new run" in str(caught.value)


@pytest.mark.parametrize(("old", "new"), [(CPU, CPU), (GPU, GPU), (GPU, CPU), (CPU, GPU)])
def test_what_changes_from_minute_to_minute_may_differ(run_of, old, new):
    later = {**new, "clock_hz": 4e9, "warnings": ["busy"]}
    if "host" not in later:
        later["facts"] = {**later["facts"], "memory_available_bytes": 6}
    before, now = run_of(device=old), run_of(device=later)
    refuse_differences(before, now, {"seed": [0]}, {"seed": (0,)})


def test_another_gpu_is_another_machine(run_of):
    before, now = run_of(device=GPU), run_of(device={**GPU, "name": "H100"})
    with pytest.raises(UsageError, match="the GPU is not the same: name was H200, is H100"):
        refuse_differences(before, now, {}, {})


def test_a_run_without_its_request_cannot_be_compared(run_of):
    with pytest.raises(UsageError, match="kept without what was asked for"):
        refuse_differences(run_of(), run_of(), None, {})
