"""How many processes a step has, by what the store knows of it and the width asked for."""

import msgspec
import pytest

from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.steps.run import planned_rounds
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

CASE = StepSpec(model="mnist")
QUIET = {0: 1.0, 1: 1.02, 2: 0.98, 3: 1.0, 4: 1.02, 5: 0.98}


def record(rounds, *, batch=64, disturbed=0):
    case = msgspec.structs.replace(CASE, batch=batch)
    return StepRecord(spec=case, status="ok", rounds_s=rounds, disturbed=disturbed).to_dict()


@pytest.mark.parametrize(
    ("documents", "planned"),
    [
        ([], 4),
        ([record(QUIET)], 20),
        ([record(QUIET), record({**QUIET, 5: 3.0}, disturbed=1)], 20),
        ([record({**QUIET, 5: 3.0}), record(QUIET)], 20),
        ([record({0: 1.0, 1: 3.0})], 4),
    ],
)
def test_the_newest_undisturbed_run_plans(store_path, run_record, documents, planned):
    with Store.open(store_path) as store:
        store.begin(run_record, "step")
        for document in documents:
            store.add(run_record.id, Entry.from_document("step", document))
        assert planned_rounds(store, [CASE], 0.01) == planned
        assert planned_rounds(store, [msgspec.structs.replace(CASE, phase="training")], 0.01) == 4
    assert planned_rounds(None, [CASE], 0.01) == 4
