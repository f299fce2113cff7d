from __future__ import annotations

import msgspec
import pytest

from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.store.entry import Entry
from pydlbench.store.resume import case_key, done_keys, refuse_differences


@pytest.fixture
def case():
    return KernelSpec(layer=find_layers(["mb1ic3ih8oc4oh6kh3"])[0])


def test_keys_tell_cases_apart(case):
    others = [
        msgspec.structs.replace(case, **change)
        for change in (
            {"pass_": "backward-data"},
            {"precision": "bf16"},
            {"cache": "all-cold"},
            {"layout": "nhwc"},
            {"backend": "torch", "mode": "eager"},
            {"backend": "torch", "mode": "compiled"},
            {"fuse": "bias"},
            {"device": "cuda:0"},
            {"device": "cuda:0", "timing": "events"},
        )
    ]
    keys = [case_key(one) for one in (case, *others)] + [case_key(case, 1), case_key(case, 2)]
    assert len(set(keys)) == len(keys)
    assert case_key(KernelSpec.from_dict(case.to_dict())) == case_key(case)


def test_ok_and_skipped_rows_are_done_and_failed_ones_not(store, run_of, entry):
    store.begin(run_of(), "sweep")
    for key, status in (("a", "ok"), ("b", "skipped"), ("c", "failed"), ("d", "failed")):
        store.add(run_of().id, entry(key, status=status))
    store.add(run_of().id, entry("d", status="ok"))
    store.add(run_of().id, entry())
    for key, document in (("e", {"status": "failed"}), ("f", {"status": "ok"}), ("g", {})):
        store.add(run_of().id, Entry("step", document, None, key))
    assert done_keys(store, run_of().id) == {"a", "b", "d", "f", "g"}


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
