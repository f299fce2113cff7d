"""The words by which rules ask for another way of running an operator are known to frameworks."""

import importlib.util

import pytest

from pydlbench.backends import capabilities
from pydlbench.diagnose.rules import LAYOUT_ALTERNATIVES
from pydlbench.ops.descriptor import parse_problem
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session

OTHER_LAYOUTS = [
    (one.name, *of)
    for one in capabilities.all_capabilities()
    for of in one.steps.layout_alternatives
]
PROBLEMS = {"conv2d": "mb1ic8ih6oc8oh6kh3ph1", "gemm": "2x16:16x8"}


@pytest.fixture(scope="module")
def session():
    with Session(RunnerOptions(budget_s=0.01, threads=1)) as made:
        yield made


@pytest.mark.deep
@pytest.mark.parametrize(("framework", "kind", "layout"), OTHER_LAYOUTS)
def test_both_ways_are_there_and_differ(session, framework, kind, layout):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}")
    mode = "eager" if framework == "torch" else "graph"
    layer = parse_problem(PROBLEMS[kind])
    case = KernelSpec(layer=layer, pass_="forward", backend=framework, mode=mode)
    layouts = []
    for word in capabilities.declaration(framework).steps.layout_alternatives[kind, layout]:
        assert word in LAYOUT_ALTERNATIVES
        kernel = session.prepare(case, variant=word)
        assert kernel.facts.correct.status == "ok"
        layouts.append(kernel.facts.layout)
        kernel.release()
    assert len(set(layouts)) == 2
