"""The page of a run: its command's blocks and figures, in one file that loads nothing."""

import base64
import hashlib
import re

import invented_runs as invented
import pytest
from page_reading import parse

from pydlbench.report.blocks import Details, Facts, Figure, Lines, TableBlock
from pydlbench.report.drawing import DARK, LIGHT
from pydlbench.report.html import MAX_FIGURES, MAX_ROWS, page
from pydlbench.report.page import runs_page


@pytest.fixture(scope="session")
def runs(tmp_path_factory, measurement):
    rows = invented.model_rows(measurement, who=invented.ALL)
    steps = [
        invented.step_record(0.1 * batch, framework=framework, mode=mode, batch=batch)
        for batch in (4, 8)
        for framework, mode in (("torch", "eager"), ("tensorflow", "graph"))
    ]
    documents = (invented.layers_document(rows), invented.steps_document(steps))
    return invented.read(tmp_path_factory.mktemp("runs"), *documents)


@pytest.fixture(scope="session")
def root(runs):
    return parse(runs_page(runs))


def printed(*blocks):
    """The tree of a page with these blocks."""
    return parse(page("a page", "of a test", [("part", blocks)]))


def test_the_page_loads_nothing_and_runs_its_own_script_only(root):
    for node in root.all():
        assert not {"src", "xlink:href", "onclick"} & set(node.attributes)
        assert node.attributes.get("href", "#").startswith("#")
    (script,) = root.all("script")
    digest = base64.b64encode(hashlib.sha256(script.children[0].encode()).digest()).decode()
    policy = next(node for node in root.all("meta") if "http-equiv" in node.attributes)
    assert policy.attributes["content"].split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_links_point_to_what_is_there_once(root):
    names = [one.attributes["id"] for one in root.all() if "id" in one.attributes]
    assert len(names) == len(set(names))
    for link in root.all("a"):
        assert link.attributes["href"].removeprefix("#") in names


def test_a_page_has_the_blocks_of_the_commands_in_their_order(runs, root):
    tables = [block for run in runs for block in run.blocks if isinstance(block, TableBlock)]
    shown = list(root.all("table"))
    at = 0
    for table in tables:
        kept = [place for place, title in enumerate(table.titles) if title]
        heads = [table.titles[place] for place in kept]
        while [one.text() for one in shown[at].all("th")][: len(heads)] != heads:
            at += 1
        cells = [" ".join(row[place] for place in kept).split() for row in table.cells]
        rows = [one.text().split() for one in shown[at].all("tr")]
        assert all(row in rows for row in cells)
    figures = [block.title for run in runs for block in run.blocks if isinstance(block, Figure)]
    assert [next(one.all("h3")).text() for one in root.all("figure")] == figures


def test_every_figure_says_in_words_what_it_shows(runs, root):
    texts = [block.text for run in runs for block in run.blocks if isinstance(block, Figure)]
    drawn = list(root.all("svg"))
    # One of each for a wide screen, and one for a narrow one.
    assert len(drawn) == 2 * len(texts) == 6
    assert [one.attributes["aria-label"] for one in drawn[::2]] == texts
    assert [one.attributes["aria-label"] for one in drawn[1::2]] == texts
    assert all(one.attributes["role"] == "img" for one in drawn)


def test_figures_take_their_colours_from_the_theme(root):
    for drawn in root.all("svg"):
        for node in drawn.all():
            for name in ("fill", "stroke"):
                assert not node.attributes.get(name, "").startswith("#")
    assert set(LIGHT) == set(DARK)


def test_a_new_figure_is_a_block_of_its_report_and_nothing_else():
    spec = {"data": {"values": [{"x": 1, "w": "one <mark>"}]}, "mark": "point"}
    spec |= {"encoding": {"x": {"field": "x"}, "description": {"field": "w"}}}
    found = printed(Figure("new", "A new figure", "in words", "how to read it", spec))
    (drawn,) = found.all("figure")
    assert drawn.attributes["id"] == "new-1"
    assert [one.text() for one in drawn.all("title")] == ["one <mark>"] * 2


def test_bars_of_a_tree_lie_below_the_bar_of_the_whole():
    inner = Details("b", [], (0.25, 0.5))
    found = printed(Details("a", [inner, Details("c", [Lines(["d"])], (0.75, 0.25))], (0.0, 1.0)))
    styles = [one.attributes["style"] for one in found.all("summary")]
    assert styles == [
        f"background-size:{size} 100%;background-position:{place} 0"
        for size, place in (("100.000%", "0.000%"), ("50.000%", "50.000%"), ("25.000%", "100.000%"))
    ]
    assert next(found.all("details")).text().split() == ["a", "b", "c", "d"]


def test_texts_of_a_run_are_no_markup():
    nasty = "<script>alert(1)</script>\x00\ud800&amp;"
    found = printed(
        Lines([nasty]),
        Facts([(nasty, nasty)]),
        TableBlock([nasty], [[nasty]], [False]),
        Details(nasty, [Lines([nasty])]),
    )
    assert len(list(found.all("script"))) == 1
    assert found.text().count("<script>alert(1)</script>\ufffd\ufffd&amp;") == 7


def test_commands_stand_in_their_own_type():
    found = printed(Lines(["next: pydlbench layers"]), Facts([("next", "pydlbench step")]))
    assert [one.text() for one in found.all("code")] == ["pydlbench layers", "pydlbench step"]


def test_a_cell_is_sorted_by_its_value():
    cells = [["1.5 ms"], ["20 us"]]
    found = printed(TableBlock(["time"], cells, [True], [[1.5e-3], [2e-5]]))
    rows = [one for one in found.all("th") if "data-v" in one.attributes]
    assert [float(one.attributes["data-v"]) for one in rows] == [1.5e-3, 2e-5]


def test_what_a_browser_cannot_take_is_counted():
    spec = {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": {"x": {"field": "x"}}}
    figure = Figure("dots", "Dots", "dots", "", spec)
    cells = [[str(at)] for at in range(MAX_ROWS + 5)]
    found = printed(*[figure] * (MAX_FIGURES + 2), TableBlock(["row"], cells, [False]))
    assert len(list(found.all("figure"))) == MAX_FIGURES
    assert len(list(found.all("tr"))) == MAX_ROWS + 1
    assert str(MAX_ROWS + 5) in found.text()


def test_what_differs_between_runs_is_a_table_and_their_rows_are_compared(tmp_path, measurement):
    first = invented.layers_document([measurement()])
    run = {**invented.RUN.to_dict(), "id": "20310102-030405-abcd"}
    second = invented.layers_document([measurement(median=0.5)], run=invented.RUN) | {"run": run}
    root = parse(runs_page(invented.read(tmp_path, first, second)))
    tables = [[row.text() for row in one.all("tr")] for one in root.all("table")]
    assert ["what run 1 run 2", f"run {invented.RUN.id} {run['id']}"] in tables
    assert any("verdict" in rows[0] for rows in tables)


def test_a_run_that_ended_early_or_has_no_rows_says_so(tmp_path, measurement):
    early = invented.layers_document([measurement()], interrupted=True)
    root = parse(runs_page(invented.read(tmp_path, early, invented.layers_document([]))))
    alarms = [one.text() for one in root.all() if one.attributes.get("class") == "alarm"]
    assert len([one for one in alarms if re.search("interrupted|nothing", one)]) == 2
