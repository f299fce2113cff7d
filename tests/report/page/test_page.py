import re

import invented_runs as invented
import msgspec
import pytest
from check_records import forecast_of
from page_reading import by_id, parse
from said import says

from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving
from pydlbench.report.page.page import build_page


def test_nothing_is_in_the_way_of_good_documents(everything, page, root):
    assert [run.troubles for run in everything] == [()] * 5
    assert [run.info.kind for run in everything] == [
        "layers",
        "estimate",
        "check",
        "step",
        "layers",
    ]
    assert "cannot be shown" not in page.html
    assert "unusable" not in page.html
    assert not [node for node in root.all("p") if node.attributes.get("class") == "absent"]


def test_the_page_loads_nothing(page, root):
    for node in root.all():
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            target = node.attributes.get(name)
            assert target is None or target.startswith("#"), (node.tag, name, target)
        assert node.tag not in {"link", "img", "iframe", "object", "embed", "base"}
    assert not re.search(r"https?:|url\((?!#)|@import", page.html)
    policy = next(
        node.attributes["content"]
        for node in root.all("meta")
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_links_and_references_point_to_what_is_there_once(page, root):
    idents = [node.attributes["id"] for node in root.all() if "id" in node.attributes]
    assert len(idents) == len(set(idents))
    used = set(re.findall(r"url\(#([^)]+)\)", page.html))
    for node in root.all():
        used |= {node.attributes[k][1:] for k in ("href",) if k in node.attributes}
        for name in ("aria-labelledby", "aria-describedby"):
            used |= set(node.attributes.get(name, "").split())
    assert used <= set(idents)


def test_the_picture_of_the_step_opens_the_page(page, root):
    sections = [node.attributes["id"] for node in root.all("section")]
    assert sections[:3] == ["picture", "differences", "conclusion"]
    figures = list(by_id(root, "picture").all("figure"))
    assert [node.attributes["id"] for node in figures] == ["step-1"]
    assert page.charts[0].name == "step-1"


def test_the_conclusion_is_what_the_commands_print(everything, root):
    from pydlbench.report.check import check_conclusion
    from pydlbench.report.verdicts import conclude

    text = by_id(root, "conclusion").text()
    assert conclude(everything[0].rows)[0] in text
    for line in check_conclusion(everything[2].checks[0].record):
        assert " ".join(line.split()) in text
    assert "dominates" in text
    assert says(text, "torch eager", "fastest")


def test_tables_hold_exact_values_and_sort_by_buttons(everything, root):
    tables = [n for n in root.all("table") if n.attributes.get("class") == "sortable"]
    assert tables
    for table in tables:
        head = next(table.all("thead"))
        assert all(list(th.all("button")) for th in head.all("th"))
        assert next(table.all("caption")).text()
    layers = by_id(root, "layers-1-caption").parent
    titles = [th.text() for th in next(layers.all("thead")).all("th")]
    column = titles.index("median")
    values = [
        float([c for c in tr.children if not isinstance(c, str)][column].attributes["data-v"])
        for tr in next(layers.all("tbody")).all("tr")
    ]
    assert values == [row.time.median for row in everything[0].rows]


def test_the_ledger_adds_up(everything, root):
    table = by_id(root, "ledger-1-caption").parent
    cells = [
        [c for c in tr.children if not isinstance(c, str)]
        for tr in next(table.all("tbody")).all("tr")
    ]
    record = everything[2].checks[0].record
    total = sum(float(row[2].attributes["data-v"]) for row in cells)
    assert total == pytest.approx(record.rungs.step.median)
    assert [row[1].text() for row in cells] == [one.kind for one in record.ledger]
    rungs = by_id(root, "rungs-1-caption").parent.text()
    assert all(reason in rungs for reason in record.reasons.values())


def test_a_forecast_stands_beside_the_check_that_came_later(tmp_path):
    changes = {"created_utc": "2030-01-01T03:00:00+00:00", "calls": 9, "stored": 3, "measured": 1}
    made = forecast_of("alexnet-owt", 0.1, **changes)
    early = msgspec.structs.replace(made, created_utc="2030-01-01T05:00:00+00:00")
    other = msgspec.structs.replace(made, batch=8)
    refused = {**made.to_dict(), "status": "skipped", "reason": "no operators here"}
    del refused["forecast_s"]
    several = [*(one.to_dict() for one in (made, early, other)), refused]
    forecasts = {"kind": "forecast", "run": invented.RUN.to_dict(), "forecasts": several}
    check = invented.check_document(step_utc="2030-01-01T04:00:00+00:00")
    runs = invented.read(tmp_path, forecasts, check)
    assert [run.troubles for run in runs] == [(), ()]
    root = parse(build_page(runs).html)
    table = by_id(root, "forecasts-table-caption").parent
    body = next(table.all("tbody"))
    rows = [
        [one.text() for one in row.children if not isinstance(one, str)] for row in body.all("tr")
    ]
    measured = runs[1].checks[0].record.measured.median
    assert [row[1] for row in rows] == [f"2030-01-01 {hour}:00" for hour in ("03", "05", "03")]
    assert rows[0][4] == "75 %"
    assert rows[0][6] == "2030-01-01 04:00"
    assert rows[0][9] == f"{100 * (0.1 / measured - 1):+.1f} %"
    assert [row[6] for row in rows[1:]] == ["-", "-"]  # before it was made, another batch
    assert "no operators here" in by_id(root, "conclusion").text()


@pytest.mark.parametrize("contended", [False, True])
def test_findings_are_a_section_where_there_are_some(tmp_path, contended):
    saving = Saving(
        seconds=0.01, low=0.009, high=0.011, step_s=0.1, of="step", how="in turn", rounds=9
    )
    finding = Finding(
        problem="decay in Python",
        where=("fc6 forward",),
        symptom="it is slow",
        evidence=(),
        causes=(Cause(name="calls", meaning="one call per tensor"),),
        saving=saving,
        next="pydlbench step",
        parts=frozenset({"fc6"}),
    )
    step = msgspec.structs.replace(invented.step_record(), contended=contended)
    document = Diagnosis(step=step, findings=(finding,)).to_dict()
    runs = invented.read(tmp_path, {"run": invented.RUN.to_dict(), **document})
    assert runs[0].troubles == ()
    root = parse(build_page(runs).html)
    # Nothing is concluded from a step that other work disturbed.
    assert ("Most is lost to" in by_id(root, "conclusion").text()) is not contended
    assert "one call per tensor" in by_id(root, "findings").text()


@pytest.mark.parametrize("contended", [False, True])
def test_disturbed_layers_do_not_tell_what_dominates_a_model(tmp_path, native, contended):
    rows = [msgspec.structs.replace(row, contended=contended) for row in native]
    root = parse(build_page(invented.read(tmp_path, invented.model_document(rows))).html)
    text = by_id(root, "conclusion").text()
    assert ("dominates" in text) is not contended
    assert ("upper bounds" in text) is contended
    ladder = by_id(root, "step-1").text()
    assert ("*" in ladder) is contended


@pytest.mark.deep
def test_size_of_alexnet_and_vgg_with_all_backends(tmp_path, measurement):
    who = [*invented.ALL, "tensorflow xla", "numba"]
    passes = ("forward", "backward-data", "backward-weights")
    documents = []
    for name in ("alexnet-owt", "vgg16"):
        rows = invented.model_rows(measurement, name, who=who, passes=passes)
        rows = [
            msgspec.structs.replace(row, samples_s=invented.samples(row.time.median, 500))
            for row in rows
            if row.kind != "pointwise"
        ]
        documents.append(invented.layers_document(rows))
    page = build_page(invented.read(tmp_path, *documents))
    assert len(page.html.encode()) < 2_000_000
