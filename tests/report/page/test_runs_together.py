"""Several runs on a page: what they share is said once, what differs in one table."""

import invented_runs as invented
import msgspec
from invented_rows import time_of
from page_reading import by_id, parse

from pydlbench.report.page.page import build_page


def cells(table):
    return [
        [cell.text() for cell in row.children if not isinstance(cell, str)]
        for row in next(table.all("tbody")).all("tr")
    ]


def two_runs(tmp_path, measurement, **changes):
    other = msgspec.structs.replace(invented.RUN, **changes)
    rows = [measurement()]
    documents = [invented.layers_document(rows), invented.layers_document(rows, other)]
    return parse(build_page(invented.read(tmp_path, *documents)).html)


def test_only_what_differs_is_in_the_table_of_differences(tmp_path, measurement):
    environment = {**invented.RUN.environment, "packages": {"numpy": "3.0.0"}}
    root = two_runs(tmp_path, measurement, id="later", environment=environment)
    table = by_id(root, "differences-table-caption").parent
    assert cells(table) == [
        ["run", invented.RUN.id, "later"],
        ["packages: numpy", "2.4.6", "3.0.0"],
    ]
    assert "Invented OS 1" in by_id(root, "environment").text()
    assert by_id(root, "environment").text().count("Invented 9000") == 1


def test_peaks_of_runs_that_agree_stand_once(tmp_path, measurement):
    slower = [{**invented.DEVICE["bandwidths"][0], "bytes_per_s": 30e9}]
    device = {**invented.DEVICE, "bandwidths": [*slower, *invented.DEVICE["bandwidths"][1:]]}
    root = two_runs(tmp_path, measurement, device=device)
    assert [row[-1] for row in cells(by_id(root, "peaks-table-caption").parent)] == ["all"]
    found = cells(by_id(root, "bandwidths-table-caption").parent)
    assert [(row[2], row[-1]) for row in found] == [
        ("40.0", "1"),
        ("48.0", "all"),
        ("150", "all"),
        ("230", "all"),
        ("30.0", "2"),
    ]


def test_one_run_differs_from_nothing(tmp_path, measurement):
    page = build_page(invented.read(tmp_path, invented.layers_document([measurement()])))
    assert 'id="differences"' not in page.html


def test_the_command_can_be_pasted(tmp_path, measurement):
    command = ("/usr/lib/python3/site-packages/pydlbench/__main__.py", "layers", "--shape", "a b")
    record = msgspec.structs.replace(invented.RUN, command=command)
    document = invented.layers_document([measurement()], record)
    root = parse(build_page(invented.read(tmp_path, document)).html)
    commands = [node.text() for node in by_id(root, "environment").all("code")]
    assert commands == ["pydlbench layers --shape 'a b'"]


def test_causes_stand_below_the_layers(tmp_path, measurement):
    causes = (
        {"cause": "dispatch", "seconds": 2e-3, "share": 0.25, "how": "an empty call"},
        {"cause": "unexplained", "seconds": 6e-3, "share": 0.75, "how": "the rest"},
    )
    rows = [measurement(), measurement(backend="torch", mode="eager", causes=causes)]
    root = parse(build_page(invented.read(tmp_path, invented.layers_document(rows))).html)
    found = cells(by_id(root, "causes-1-caption").parent)
    assert [row[2:6] for row in found] == [
        ["dispatch", "2.00 ms", "25.0 %", "an empty call"],
        ["unexplained", "6.00 ms", "75.0 %", "the rest"],
    ]


def test_two_runs_are_compared_with_what_their_rows_resolve(tmp_path, measurement):
    def document(name, **factors):
        rows = []
        for number in range(6):
            time = time_of(0.05 * factors.get(f"conv{number}", 1.0))
            rows.append(measurement(layer=f"net/conv{number}", problem=f"p{number}", time=time))
        return invented.layers_document(rows, msgspec.structs.replace(invented.RUN, id=name))

    root = parse(build_page(invented.read(tmp_path, document("a"), document("b", conv4=1.6))).html)
    found = cells(by_id(root, "comparison-table-caption").parent)
    assert [row[0] for row in found] == [f"net/conv{number}" for number in range(6)]
    ratio, _, resolves, verdict = found[4][3:7]
    assert (ratio, verdict) == ("1.600", "SLOWER")
    assert 10 < float(resolves.removesuffix(" %")) < 40
    assert [row[6] for row in found if row is not found[4]] == ["UNCLEAR"] * 5


def test_runs_without_a_row_in_common_are_not_compared(tmp_path, measurement):
    documents = [
        invented.layers_document([measurement(layer=name, problem=name, kind=kind)])
        for name, kind in (("a", "conv2d"), ("b", "gemm"))
    ]
    page = build_page(invented.read(tmp_path, *documents))
    assert 'id="comparison"' not in page.html
