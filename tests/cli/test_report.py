import re
import shutil
import subprocess
import sys

import invented_runs as invented
import pytest

from pydlbench.cli import main


@pytest.fixture
def document(tmp_path, measurement):
    rows = [measurement(samples_s=invented.samples(0.05)), measurement(layer="alexnet/conv4")]
    return str(invented.write(tmp_path / "run.json", invented.layers_document(rows)))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "page.html"


def test_it_writes_one_page_and_says_how_large_it_is(document, target, capsys):
    assert main(["report", document, "-o", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    out = capsys.readouterr().out
    assert out.startswith(f"{target}: ")
    assert "2 figures" in out


def test_figures_become_files_as_well(document, target, tmp_path, capsys):
    folder = tmp_path / "figures"
    arguments = ["--png", str(folder), "--svg", str(folder), "--quiet"]
    assert main(["report", document, "-o", str(target), *arguments]) == 0
    names = sorted(one.name for one in folder.iterdir())
    assert names == ["roofline-1.png", "roofline-1.svg", "samples-1.png", "samples-1.svg"]
    assert (folder / "roofline-1.png").read_bytes().startswith(b"\x89PNG")
    svg = (folder / "roofline-1.svg").read_text(encoding="utf-8")
    assert 'xmlns="http://www.w3.org/2000/svg"' in svg
    assert "var(--" not in svg
    assert "#0072b2" in svg
    assert capsys.readouterr().out == ""


def test_the_page_can_go_to_standard_output(document, capsys):
    assert main(["report", document, "-o", "-", "--title", "Mine & yours"]) == 0
    out = capsys.readouterr().out
    assert "<h1>Mine &amp; yours</h1>" in out
    assert out.endswith("</html>\n")


def test_a_run_of_the_store_is_found_and_others_are_not_read(tmp_path, target, measurement):
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

    path = tmp_path / "store.sqlite"
    with Store.open(path) as store:
        store.begin(invented.RUN, "layers")
        row = measurement(samples_s=invented.samples(0.05))
        store.add(invented.RUN.id, Entry.from_document("layer", row.to_dict()))
        store.finish(invented.RUN, "done")
        store.tag(invented.RUN.id, "good")
    assert main(["report", "good", "-o", str(target), "--store", str(path), "--quiet"]) == 0
    html = target.read_text(encoding="utf-8")
    assert invented.RUN.id in html
    assert "<dt>tags</dt><dd>good</dd>" in html
    assert 'id="samples-1"' in html


def test_several_runs_share_a_page_and_the_same_twice_is_once(document, target, tmp_path):
    other = invented.write(
        tmp_path / "step.json", invented.steps_document([invented.step_record()])
    )
    arguments = [document, str(other), document, "-o", str(target), "--quiet"]
    assert main(["report", *arguments]) == 0
    html = target.read_text(encoding="utf-8")
    assert "2 runs" in html
    assert 'id="samples-2"' in html


def test_an_old_page_is_replaced_in_one_step(document, target, tmp_path):
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    assert main(["report", document, "-o", str(target), "--quiet"]) == 0
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE")
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "run.json"]


def test_a_run_that_measured_nothing_is_an_error_with_a_page(tmp_path, target, without_time):
    rows = [without_time("failed", "it broke")]
    document = invented.write(tmp_path / "run.json", invented.layers_document(rows))
    assert main(["report", str(document), "-o", str(target), "--quiet"]) == 1
    assert "it broke" in target.read_text(encoding="utf-8")


def test_what_is_no_results_is_refused(tmp_path, target, capsys):
    path = tmp_path / "other.json"
    path.write_text('{"schema_version": 1, "text": "x"}', encoding="utf-8")
    assert main(["report", str(path), "-o", str(target)]) == 2
    assert "other.json" in capsys.readouterr().err
    assert not target.exists()


def test_without_what_draws_one_line_says_what_to_install(document, target, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["report", document, "-o", str(target)]) == 1
    assert "pip install 'pydlbench[report]'" in capsys.readouterr().err
    assert not target.exists()


def test_help_needs_nothing_that_draws_and_no_numpy():
    code = (
        "import sys; from pydlbench.cli import main; main(['report', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('vl_convert', 'numpy', 'sqlite3')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here to open the page with"
)


def opened(page, folder):
    """Open a page from disk; returns its tree as text, and what the console says."""
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"),
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    assert "</html>" in done.stdout
    lines = done.stderr.splitlines()
    return done.stdout, [line for line in lines if re.search("CONSOLE|Refused", line)]


@needs_browser
def test_a_browser_opens_it_from_disk_and_complains_of_nothing(document, target, tmp_path):
    assert main(["report", document, "-o", str(target), "--quiet"]) == 0
    assert opened(target, tmp_path)[1] == []


@needs_browser
def test_a_click_on_a_heading_sorts_the_table(target, tmp_path, measurement):
    names = ("conv1", "conv10", "conv2")
    times = (0.05, 0.03, 0.04)
    rows = [
        measurement(layer=f"alexnet/{name}", median=median)
        for name, median in zip(names, times, strict=True)
    ]
    path = invented.write(tmp_path / "three.json", invented.layers_document(rows))
    assert main(["report", str(path), "-o", str(target), "--quiet"]) == 0
    html = target.read_text(encoding="utf-8")
    # The page's policy lets no other script in: here it is taken out to make the clicks.
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert free != html
    clicks = """<script>
        const table = document.querySelector("table.sortable");
        const find = (title) => [...table.tHead.rows[0].cells].find(
            (one) => one.textContent.trim() === title);
        const order = () => [...table.tBodies[0].rows].map((one) => one.cells[0].textContent);
        const seen = [];
        for (const title of ["median", "median", "layer"]) {
            find(title).querySelector("button").click();
            seen.push(find(title).getAttribute("aria-sort"), ...order());
        }
        document.querySelector("h1").textContent = seen.join(" ");
    </script>"""
    target.write_text(free.replace("</body>", f"{clicks}</body>"), encoding="utf-8")
    dom, complaints = opened(target, tmp_path)
    assert complaints == []
    heading = re.search("<h1>(.*?)</h1>", dom)[1].split()
    assert heading == [
        *("ascending", "conv10", "conv2", "conv1"),
        *("descending", "conv1", "conv2", "conv10"),
        *("ascending", "conv1", "conv2", "conv10"),
    ]
