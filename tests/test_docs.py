"""The pages under docs/: commands parse, Python runs, sweeps can be read, links lead somewhere."""

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from pydlbench.cli.parser import COMMANDS, help_text, read, records
from pydlbench.cli.sweep import read_file, table_keys
from pydlbench.errors import UsageError
from pydlbench.models import model_names
from pydlbench.records.documents import DOCUMENTS
from pydlbench.runner.sweep import parse_sweep

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
SHOWN = [*PAGES, ROOT / "README.md"]

_spec = importlib.util.spec_from_file_location("write_commands", DOCS / "write_commands.py")
assert _spec is not None
assert _spec.loader is not None
write_commands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_commands)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def command_lines(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks, and of its prose, that run pydlbench."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
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
    page.name: {line for line in command_lines(page) if line and not line.startswith("-")}
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
    assert read([words[0], *arguments]), line


def test_enough_commands_are_found():
    assert sum(map(len, COMMAND_LINES.values())) > 40


@pytest.mark.parametrize("page", COMMAND_LINES)
def test_the_commands_of_a_page_are_understood(page):
    for line in COMMAND_LINES[page]:
        parse(line)


def test_a_command_that_is_wrong_would_be_found():
    for line in ("layers --threads", "layers --shap conv3", "layers --batch 1 2"):
        with pytest.raises(UsageError):
            parse(line)


def test_the_page_of_commands_is_current():
    assert write_commands.PAGE.read_text(encoding="utf-8") == write_commands.page(), (
        "run: python docs/write_commands.py"
    )


def test_the_readme_names_every_command_and_counts_the_models():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = blocks(ROOT / "README.md", "text")[1].splitlines()
    assert set(listed) <= set(help_text().splitlines())
    assert [line.split()[0] for line in listed if line.startswith(" ")] == list(COMMANDS)
    assert f"There are\n{len(model_names())}: " in text


def test_every_command_and_schema_has_its_place():
    index = (DOCS / "commands.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## {name}\n" in index
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    for name in DOCUMENTS:
        assert f"`{name}`" in page


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
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


def test_the_python_of_extending_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/example_plugin"))
    space: dict[str, object] = {"__name__": "extending"}
    for block in blocks(DOCS / "extending.md", "python"):
        exec(compile(block, "docs/extending.md", "exec", dont_inherit=True), space)
    assert space["study"].table.rounds("product") == 6


def test_the_python_about_schemas_runs(tmp_path, monkeypatch, capsys, run_record, measurement):
    pytest.importorskip("jsonschema")
    from pydlbench.report.json import to_json

    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(to_json(run_record, [measurement()]), encoding="utf-8")
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
    monkeypatch.setattr("pydlbench.backends.capabilities.is_there", lambda _: True)
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
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        (contract,) = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (picture,) = blocks(DOCS / "architecture.md", "mermaid")
    groups = re.findall(r"^  subgraph \w+ .*\n(.*)\n  end$", picture, re.MULTILINE)
    shown = [name for group in groups for name in re.split(r" --> | & ", group.strip())]
    held = [name for level in contract["layers"][::-1] for name in level.split(" | ")]
    assert [name for name in shown if name in held] == held
    folders = {one.name for one in (ROOT / "pydlbench").iterdir() if (one / "__init__.py").exists()}
    assert folders <= set(shown)
