"""Whether a run may go on: the same request on the same machine."""

import pytest
from said import says

from pydlbench.errors import UsageError
from pydlbench.store.resume import refuse_differences

CPU = {"name": "A", "facts": {"model": 1, "memory_available_bytes": 5}}
GPU = {"name": "H200", "facts": {}, "host": CPU}


@pytest.mark.parametrize(
    ("old", "device", "environment", "request_", "values"),
    [
        (CPU, {**CPU, "name": "B"}, {}, {}, ("machine", "name", "A", "B")),
        (CPU, {**CPU, "facts": {"model": 2}}, {}, {}, ("machine", "model", "1", "2")),
        (CPU, {**CPU, "facts": {"model": 1, "affinity": [0]}}, {}, {}, ("CPUs", "0", "1")),
        (GPU, {**GPU, "name": "H100"}, {}, {}, ("GPU", "name", "H200", "H100")),
        (CPU, CPU, {"packages": {"torch": "2.14"}}, {}, ("library", "torch", "2.13", "2.14")),
        (CPU, CPU, {"variables": {"OMP": "1"}}, {}, ("variable", "OMP", "1")),
        (CPU, CPU, {}, {"pass": ["forward"]}, ("request", "pass", "forward")),
        (CPU, CPU, {}, {"seed": 1}, ("request", "seed", "0", "1")),
    ],
)
def test_what_differs_is_named(run_of, old, device, environment, request_, values):
    packages = {"packages": {"torch": "2.13"}, "variables": {}}
    before = run_of(device=old, environment=packages)
    now = run_of(device=device, environment={**packages, **environment})
    with pytest.raises(UsageError) as caught:
        refuse_differences(before, now, {"seed": 0}, {"seed": 0, **request_})
    assert says(str(caught.value), before.id, *values, "without --resume")


@pytest.mark.parametrize(("old", "new"), [(CPU, CPU), (GPU, GPU), (GPU, CPU), (CPU, GPU)])
def test_what_changes_from_minute_to_minute_may_differ(run_of, old, new):
    later = {**new, "clock_hz": 4e9, "warnings": ["busy"]}
    if "host" not in later:
        later["facts"] = {**later["facts"], "memory_available_bytes": 6}
    before, now = run_of(device=old), run_of(device=later)
    refuse_differences(before, now, {"seed": [0]}, {"seed": (0,)})


def test_a_run_without_its_request_cannot_be_compared(run_of):
    with pytest.raises(UsageError, match=run_of().id):
        refuse_differences(run_of(), run_of(), None, {})
