"""Runs of every kind, and the page that comes of them: made once, and changed by no test."""

import invented_runs as invented
import msgspec
import pytest
from page_reading import parse

from pydlbench.report.page.page import build_page


@pytest.fixture(scope="session")
def rows(measurement):
    return invented.model_rows(measurement, who=invented.ALL)


@pytest.fixture(scope="session")
def native(measurement):
    return invented.model_rows(measurement)


@pytest.fixture(scope="session")
def everything(tmp_path_factory, rows, native, measurement):
    """Runs of every kind, with samples and several batches."""
    cold = [msgspec.structs.replace(row, cache="all-cold") for row in native]
    sweep = [
        measurement(
            batch=n, problem=f"mb{n}ic192", tflops=0.1 * n, samples_s=invented.samples(0.05, 300)
        )
        for n in (1, 2, 4)
    ]
    steps = [
        invented.step_record(0.1 * factor, framework=framework, mode=mode, phase=phase, batch=batch)
        for batch in (4, 8)
        for phase in ("forward", "training")
        for framework, mode, factor in (("torch", "eager", 1), ("tensorflow", "graph", 1.4))
    ]
    return invented.read(
        tmp_path_factory.mktemp("runs"),
        invented.layers_document(rows),
        invented.model_document(native),
        invented.check_document(native + cold),
        invented.steps_document(steps),
        invented.layers_document(sweep),
    )


@pytest.fixture(scope="session")
def page(everything):
    return build_page(everything)


@pytest.fixture(scope="session")
def root(page):
    return parse(page.html)
