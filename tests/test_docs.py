"""The pages under docs/: commands parse, Python runs, sweeps can be read, links lead somewhere."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import pydlbench
from pydlbench.cli.parser import COMMANDS, help_text, read, records
from pydlbench.cli.sweep import read_file, table_keys
from pydlbench.errors import UsageError
from pydlbench.models import model_names
from pydlbench.models.catalog import find_layers
from pydlbench.ops.descriptor import parse_problem
from pydlbench.records.documents import DOCUMENTS
from pydlbench.report.drawing import DARK, LIGHT
from pydlbench.runner.sweep import parse_sweep
from pydlbench.words import PRECISIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted(RESULTS.rglob("*.md"))]
SCRIPTS = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]


def script(path: Path) -> ModuleType:
    """Import a script of the repository."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write_commands = script(DOCS / "write_commands.py")
write_outputs = script(DOCS / "write_outputs.py")


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in found]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def command_lines(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks, and of its prose, that run pydlbench."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    for block in blocks(page, "console"):
        lines += [command for command, _ in write_outputs.outputs_of(block)]
    plain = prose(page)
    # Names in capitals stand for values; a command alone says nothing of its options.
    lines += [
        one for one in re.findall(r"`(pydlbench [^`]*)`", plain) if not re.search(r"[A-Z]{3}", one)
    ]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        for start in ("pydlbench", "-m pydlbench"):
            head = start.split()
            for index in range(len(words)):
                if words[index : index + len(head)] == head or (
                    start == "pydlbench" and index == 0 and words[0].endswith("/pydlbench")
                ):
                    found.append(shlex.join(words[index + len(head) :]))
                    break
            else:
                continue
            break
    return found


COMMAND_LINES = {
    str(page.relative_to(ROOT)): {
        line for line in command_lines(page) if line and not line.startswith("-")
    }
    for page in SHOWN
}


def parse(line: str) -> None:
    words = shlex.split(line)
    for mark in (">", "|", "&&", ";"):
        if mark in words:
            words = words[: words.index(mark)]
    assert words[0] in COMMANDS, line
    arguments = [word for word in words[1:] if word != "..."]
    if set(arguments) <= set(records(words[0])):  # only the command is named
        return
    options, _ = read([words[0], *arguments])
    for pattern in getattr(options, "shape", None) or ():
        if not pattern.startswith("@"):
            pool = getattr(options, "pool", None)
            assert find_layers([pattern], None, pool, option="--shape"), line


def test_enough_commands_are_found():
    assert sum(map(len, COMMAND_LINES.values())) > 40


@pytest.mark.parametrize("page", COMMAND_LINES)
def test_the_commands_of_a_page_are_understood(page):
    for line in COMMAND_LINES[page]:
        parse(line)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_commands_of_a_script_s_docstring_are_understood(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for line in re.findall(r"^ +pydlbench (.*)$|`+pydlbench ([^-`][^`]*)`+", text, re.MULTILINE):
        parse("".join(line))


def test_the_descriptors_of_pages_are_understood():
    form = r"`((?:[a-z-]+:)*(?:(?:[a-z]+[0-9]+_?){3,}|[0-9]+(?:x[0-9]+)+(?::[0-9]+(?:x[0-9]+)*)*))`"
    found = [text for page in SHOWN for text in re.findall(form, prose(page))]
    assert {"ic8ih2oc8oh1kh1ph0", "lstm:d2t25mb32slc64dhc128"} <= set(found)
    for text in found:
        # A shape alone is no layer, and the types of a precision are none.
        if text not in PRECISIONS and (":" in text or "x" not in text):
            parse_problem(text, pool="max")


def test_a_command_that_is_wrong_would_be_found():
    for line in (
        *("layers --threads", "layers --shap conv3", "layers --batch 1 2"),
        "layers --shape relu:0",
    ):
        with pytest.raises(UsageError):
            parse(line)


def test_the_pages_of_commands_are_current():
    written = write_commands.pages()
    kept = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("commands*.md")}
    assert kept == written, "run: python docs/write_commands.py"
    shown = "".join(written.values())
    assert all(f"\n## {name}\n" in shown for name in COMMANDS)


def test_the_readme_shows_or_names_every_command_and_counts_the_models():
    page = ROOT / "README.md"
    (listed,) = blocks(page, "text")
    assert {f"  {line}" for line in listed.splitlines()} <= set(help_text().splitlines())
    shown = [line.split()[0] for line in COMMAND_LINES["README.md"]]
    assert {*shown, *(line.split()[0] for line in listed.splitlines())} == set(COMMANDS)
    assert f"{len(model_names())} models of the catalogue" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", write_outputs.PAGES)
def test_outputs_fit_a_terminal_of_100_columns(page):
    shown = "".join(blocks(ROOT / page, "console")).splitlines()
    assert len(shown) > 20
    # A command is there to be copied, and stands on one line.
    long = [line for line in shown if len(line) > 100 and not re.match(r"\$ | *next:? ", line)]
    assert long == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


@pytest.mark.parametrize(
    ("printed", "shown", "kept"),
    [
        (["a", "b", "c"], [], ["a", "b", "c"]),
        (["a", "b", "c"], ["x", "..."], ["a", "..."]),
        (["a", "b"], ["x", "y", "..."], ["a", "b"]),
        (["a", "b"], ["x"], ["a", "b"]),
    ],
)
def test_an_output_is_cut_where_it_was_cut(printed, shown, kept):
    assert write_outputs.cut(printed, shown) == kept


def test_outputs_are_written_below_their_commands(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "a\n```console\n$ stty size <&1\nold\n$ echo x >&2; seq 3\n1\n...\n```\nb\n"
        "```console\n$ echo new; exit 2\nold\n```\n"
    )
    assert write_outputs.write_page(page, tmp_path, tmp_path / "s.sqlite") == ["echo new; exit 2"]
    assert page.read_text() == (
        "a\n```console\n$ stty size <&1\n50 100\n$ echo x >&2; seq 3\n1\n...\n```\nb\n"
        "```console\n$ echo new; exit 2\nold\n```\n"
    )


@pytest.mark.parametrize(
    "document", [ROOT / "tests/end_to_end/recorded/breakdown.json", write_outputs.KEPT]
)
def test_pictures_are_drawn_for_light_and_dark_pages(document):
    pytest.importorskip("vl_convert")
    drawn = write_outputs.pictures(document)
    assert LIGHT["paper"] in drawn["light"]
    assert DARK["paper"] in drawn["dark"]
    assert not {LIGHT[name] for name in ("paper", "ink", "blue")} & set(
        re.findall(r"#[0-9a-f]{6}", drawn["dark"])
    )


def test_the_tutorial_shows_the_model_that_it_measures():
    torch = pytest.importorskip("torch")
    example = ROOT / "examples" / "reviews.py"
    assert blocks(DOCS / "tutorial.md", "python") == [example.read_text(encoding="utf-8")]
    model, text, loss = script(example).build(batch=2, length=3)
    assert model(text).shape == (2, 2)
    assert torch.isfinite(loss(model(text)))


def test_every_page_of_results_is_in_their_index():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(RESULTS)) for page in RESULTS.rglob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\((.+?)\)", text)) == pages


@pytest.mark.deep
def test_the_site_is_built_without_a_warning(tmp_path):
    for name in ("sphinx", "myst_parser", "furo", "sphinxcontrib.mermaid"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("*.html"))) > len(PAGES)


def test_every_schema_has_its_place():
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    for name in DOCUMENTS:
        assert f"`{name}`" in page


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there), target


def test_no_link_of_the_readme_depends_on_the_repository_on_pypi():
    """The package's page there is the README, with what the build substitutes in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    targets += re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    assert len(targets) > 5
    assert [one for one in targets if not one.startswith(("https://", "#"))] == []


def test_every_page_is_reached_from_the_index():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name == "index.md" or f"]({page.name})" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page):
    text = prose(page)
    for name in re.findall(r"`([\w/.-]+/[\w.-]*\.(?:py|toml|md)|[\w/]+/)`", text):
        places = (ROOT / name, ROOT / "pydlbench" / name)
        assert any(place.exists() for place in places), name


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_pages_uses_what_the_package_has(page):
    for block in blocks(page, "py(?:thon)?"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pydlbench":
                assert hasattr(pydlbench, node.attr), node.attr


def test_the_python_of_extending_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/example_plugin"))
    space: dict[str, object] = {"__name__": "extending"}
    for block in blocks(DOCS / "extending.md", "python"):
        exec(compile(block, "docs/extending.md", "exec", dont_inherit=True), space)
    assert space["study"].table.rounds("product") == 6


def test_the_python_about_schemas_runs(tmp_path, monkeypatch, capsys, run_record, measurement):
    pytest.importorskip("jsonschema")
    from pydlbench.report.json import dump, layers_document

    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(
        dump(layers_document(run_record, [measurement()])), encoding="utf-8"
    )
    for block in blocks(DOCS / "json.md", "python"):
        exec(compile(block, "docs/json.md", "exec"), {})
    assert "Core clock" in capsys.readouterr().out


SWEEPS = [
    *((f"docs/{page.name}", block) for page in PAGES for block in blocks(page, "toml")),
    *((one.name, one.read_text("utf-8")) for one in sorted((ROOT / "benchmarks/sweeps").glob("*"))),
]


@pytest.mark.parametrize(("name", "text"), SWEEPS, ids=[name for name, _ in SWEEPS])
def test_a_sweep_can_be_read(name, text, monkeypatch, tmp_path):
    if "layers = [" in text:  # a file of the catalog
        return
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("pydlbench.devices.cpu.affinity.choose_cpus", lambda *_: tuple(range(8)))
    monkeypatch.setattr("pydlbench.backends.capabilities.is_installed", lambda _: True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text("def build(width): pass\n")
    jobs, _ = read_file(parse_sweep(name, text, table_keys()))
    assert sum(len(job.rows) for job in jobs) > 1


def test_the_messages_on_sweeps_are_real():
    from pydlbench.errors import UsageError

    (text,) = blocks(DOCS / "sweeps.md", "toml")
    (shown,) = [one for one in blocks(DOCS / "sweeps.md", "text") if "a.toml" in one]
    for old, new, line in zip(
        ('"bf16"]', "repetitions = 6", '"backward-*"'),
        ('"bf17"]', 'modes = "x"', '"backwrd"'),
        shown.splitlines(),
        strict=True,
    ):
        with pytest.raises(UsageError) as caught:
            read_file(parse_sweep("a.toml", text.replace(old, new), table_keys()))
        assert f"pydlbench: {caught.value}" == line


def test_the_picture_of_the_house_shows_the_layers_that_the_linter_holds():
    """Arrows of the picture lead from each folder to the next one that may import it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        (contract,) = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (picture,) = blocks(DOCS / "architecture.md", "mermaid")
    groups = re.findall(r"^  subgraph \w+ .*\n(.*)\n  end$", picture, re.MULTILINE)
    shown = [name for group in groups for name in re.split(r" --> | & ", group.strip())]
    held = [name for level in contract["layers"][::-1] for name in level.split(" | ")]
    assert [name for name in shown if name in held] == held
    folders = {one.name for one in (ROOT / "pydlbench").iterdir() if (one / "__init__.py").exists()}
    assert folders <= set(shown)
