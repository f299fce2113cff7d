"""Whatever was measured, refused and tried, the terms sum to the step."""

from hypothesis import given, settings
from hypothesis import strategies as st
from invented_laps import laps

from pydlbench.ladder.ledger import Experiment, conclude
from pydlbench.records.check import RUNGS

MS = st.floats(min_value=1e-3, max_value=1e4)
SECONDS = st.floats(min_value=-10.0, max_value=10.0)


@settings(max_examples=80)
@given(
    count=st.integers(min_value=1, max_value=9),
    changed=st.dictionaries(st.sampled_from(RUNGS), MS),
    without=st.sets(st.sampled_from(RUNGS[:-1])),
    slow=st.dictionaries(st.sampled_from(RUNGS[1:-1]), st.sampled_from([0.5, 1.0])),
    marked=st.integers(min_value=0, max_value=9),
    fusible=st.none() | MS,
    tried=st.lists(
        st.tuples(st.sampled_from(RUNGS[1:]), st.booleans(), st.lists(SECONDS, min_size=1)),
        max_size=5,
    ),
)
def test_whatever_was_measured_the_terms_sum_to_the_step(
    count, changed, without, slow, marked, fusible, tried
):
    if fusible is not None:
        changed["native_fusible"] = fusible
    taken = laps(count, without=tuple(without), canary=slow, marked=marked, **changed)
    experiments = [
        Experiment(
            term=f"cause {number}",
            rung=rung,
            seconds=dict(enumerate(values)),
            how="an experiment",
            paired=paired,
        )
        for number, (rung, paired, values) in enumerate(tried)
    ]
    found = conclude(taken, experiments, fused=fusible is not None)
    assert set(found.reasons) == {name for name in RUNGS if found.rungs.of(name) is None}
    if found.rungs.step is None:
        assert found.ledger == ()
        return
    size = sum(abs(one.seconds) for one in found.ledger)
    assert abs(sum(one.seconds for one in found.ledger) - found.rungs.step.median) <= 1e-9 * size
    names = [one.term for one in found.ledger]
    assert len(set(names)) == len(names)
    assert {f"cause {number}" for number in range(len(tried))} <= set(names)
    known = [name for name in RUNGS if found.rungs.of(name) is not None]
    assert [one.between[-1] for one in found.ledger] == sorted(
        (one.between[-1] for one in found.ledger), key=known.index
    )
    for one in found.ledger:
        assert one.ci_low is None or one.ci_low <= one.seconds <= one.ci_high
