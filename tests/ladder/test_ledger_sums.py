"""Whatever was measured, in every phase and mode, the terms sum to the step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from invented_evidence import evidence, row

from pydlbench.ladder.estimate import plan
from pydlbench.ladder.ledger import ledger
from pydlbench.ladder.native import native_sum
from pydlbench.ladder.operators import singles, step_operators
from pydlbench.models import build_model
from pydlbench.records.check import UNEXPLAINED

WAYS = (("torch", "eager"), ("torch", "compiled"), ("tensorflow", "graph"), ("tensorflow", "xla"))
SECONDS = st.floats(min_value=0.0, max_value=10.0)
DIFFERENCES = st.floats(min_value=-10.0, max_value=10.0)


@settings(max_examples=60, deadline=None)
@given(
    way=st.sampled_from(WAYS),
    phase=st.sampled_from(["forward", "forward-backward", "training"]),
    feed=st.sampled_from(["resident", "host"]),
    apart=st.booleans(),
    seed=st.randoms(use_true_random=False),
    measured_s=st.floats(min_value=1e-6, max_value=100.0),
    calls=st.tuples(SECONDS, SECONDS),
    differences=st.tuples(DIFFERENCES, DIFFERENCES),
    reorder_s=st.none() | SECONDS,
    failing=st.integers(min_value=0, max_value=3),
)
def test_whatever_was_measured_the_terms_sum_to_the_step(
    way, phase, feed, apart, seed, measured_s, calls, differences, reorder_s, failing
):
    model = build_model("resnet18", 1)
    found = step_operators(model, phase, *way, feed)
    alone = singles(model, phase, found) if apart else ()
    wanted = plan(model, phase)
    bad = set(seed.sample(wanted.cases, failing))
    native = native_sum(
        wanted,
        {
            case: row(case, 0.1 + seed.random(), 0.1, "failed" if case in bad else "ok")
            for case in wanted.cases
        },
    )
    seen = evidence(
        found,
        native,
        measured_s=measured_s,
        times={one.name: seed.random() for one in (*found, *alone)},
        operators={one.name: len(one.nodes) for one in (*found, *alone)},
        singles=alone,
        dispatch_s=calls[0],
        start_s=calls[1],
        allocation_s=differences[0],
        host_s=differences[1] if feed == "host" else None,
        reorder_s=reorder_s,
    )
    made = ledger(model, found, seen)
    names = [one.term for one in made]
    assert len(set(names)) == len(names)
    assert names[-1] == UNEXPLAINED
    assert ("host transfer" in names) == (feed == "host")
    size = sum(abs(one.seconds) for one in made)
    assert abs(sum(one.seconds for one in made) - measured_s) <= 1e-9 * size
    # The rest is what neither the operators, nor what a call needs, nor an A/B has.
    operators = sum(one.count * seen.times[one.name] for one in found if one.kind != "feed")
    known = operators + calls[1] + differences[0] + (seen.host_s or 0.0)
    assert abs(made[-1].seconds - (measured_s - known)) <= 1e-9 * max(size, 1.0)
