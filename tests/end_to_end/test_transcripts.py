"""The command line end to end: transcripts of command lines with what each printed and returned.

A file of ``transcripts/`` is one test. Its lines that begin with ``$ pydlbench`` or ``~ pydlbench``
are run one after another, each in a process, in an empty folder with the files of ``recorded/`` in
it and a store of their own; the lines below each are what has to come out again: standard output,
standard error with ``! `` before each line, and the exit code in brackets. Only the command line is
used, nothing that is inside the package.

``$`` has its output compared word for word, but for widths of columns, the folder's path and the
version. Its input is recorded or its output is the same on every machine. JSON documents and HTML
pages are shown as their content: a line per object, or per heading, row and paragraph; schemas as
their objects, each once however many documents have it.

``~`` measures on this machine: only the heads of its tables, and the keys of the file that its
``--json`` names, are compared. That file is also held against the schema that ``export --schema``
prints for the command.

``transcripts/deep`` needs PyTorch and TensorFlow and takes minutes.

After an intended change, ``python tests/end_to_end/test_transcripts.py [NAME ...]`` writes the
transcripts anew, all of them or those named; the difference is for a person to read.
"""

import difflib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import pydlbench

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
TRANSCRIPTS = sorted((HERE / "transcripts").glob("*.txt"))
DEEP = sorted((HERE / "transcripts" / "deep").glob("*.txt"))

# Parts of measured documents whose keys depend on the machine, on versions of libraries, or on
# what was fastest.
VARIABLE = {
    "backends.about",
    "device.facts",
    "device.libraries",
    "device.peaks.nominal",
    "device.peaks.theoretical",
    "device.warnings",
    "differences",
    "dominant_share",
    "environment.packages",
    "environment.settings",
    "environment.variables",
    "findings",
    "geomean_in",
    "kinds",
    # Of a breakdown, of which a level may not be known.
    *("levels", "reasons", "terms"),
    "measurements.candidates.reorder_s",
    "measurements.causes",
    "measurements.reorder_s",
    "run.device",
    "run.environment",
    "step.environment",
    "step.rounds_s",
    "steps.environment",
    "steps.rounds_s",
    "tried",
    "untried",
}
# Keys that tell whether a measured run ended early, which depends on the machine's speed.
EARLY = {"interrupted", "unfinished"}
# Columns of measured tables that are left out where all rows agree, or none has anything to say.
SOMETIMES = {"layout", "note", "of bandwidth", "p90", "p99"}


# Runs command lines that it reads, one as JSON per line, each in a child that has imported already
# what all of them import; writes what each printed and its exit code.
SERVER = """
import importlib, json, os, pkgutil, runpy, sys, tempfile
import pydlbench.cli, pydlbench.report.layers, pydlbench.store.store
for one in pkgutil.iter_modules(pydlbench.cli.__path__, "pydlbench.cli."):
    importlib.import_module(one.name)

def run(words):
    sys.argv = ["pydlbench", *words]
    try:
        runpy.run_module("pydlbench", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code or 0

for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                code = run(json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
        print(json.dumps([code, *said]), flush=True)
"""


def replay(transcript: Path, folder: Path) -> str:
    """Run a transcript's command lines in a folder and return the transcript that they make."""
    shutil.copytree(RECORDED, folder, dirs_exist_ok=True)
    lines = transcript.read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith(("$ pydlbench", "~ pydlbench"))]
    parts = []
    known: set[str] = set()
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=folder,
        env=surroundings(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for line in commands:
            words = shlex.split(line)[2:]
            if line[0] == "$":
                print(json.dumps(words), file=server.stdin, flush=True)
                code, out, err = json.loads(server.stdout.readline())
                done = subprocess.CompletedProcess(words, code, out, err)
                parts.append(f"{line}\n{exact(done, words, folder, known)}")
            else:
                parts.append(f"{line}\n{measured(words, folder)}")
    return "\n".join(parts)


def surroundings(folder: Path) -> dict[str, str]:
    """Return the environment of a command line, which finds the package that the tests import."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(pydlbench.__file__).parents[1]),
        "PYDLBENCH_STORE": str(folder / "store.sqlite"),
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "1000",
        "NO_COLOR": "1",
    }


def pydlbench_command(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pydlbench", *words],
        cwd=folder,
        env=surroundings(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def exact(
    done: subprocess.CompletedProcess[str], words: list[str], folder: Path, known: set[str]
) -> str:
    """Return all that a command printed, and its exit code; see :func:`described` for ``known``."""
    out = done.stdout
    if out.startswith("<!DOCTYPE html>"):
        out = page_text(out)
    elif "--schema" in words and done.returncode == 0:
        out = described(json.loads(out), known)
    elif out.startswith("{"):
        out = shown(json.loads(out))
    lines = [*out.splitlines(), *(f"! {line}" for line in done.stderr.splitlines())]
    lines.append(f"[{done.returncode}]")
    return "".join(f"{line}\n" for one in lines for line in fitted(normal(one, folder)))


def schema_name(words: list[str]) -> str:
    """Return the schema of what a command line writes."""
    ways = [way for way in ("protocol", "trace") if f"--{way}" in words]
    return "-".join([words[0], *ways])


def measured(words: list[str], folder: Path) -> str:
    """Return the heads of a command's tables, the keys of its JSON file and its exit code."""
    done = pydlbench_command(words, folder)
    assert done.returncode in {0, 3}, f"{shlex.join(words)}: {done.stderr}"
    lines = [head(normal(line, folder)) for line in done.stdout.splitlines() if is_head(line)]
    # A ledger needs a step that nobody disturbed.
    lines = [line for line in lines if not line.startswith("term ")]
    if "--json" in words:
        document = json.loads((folder / words[words.index("--json") + 1]).read_text("utf-8"))
        valid(document, schema_name(words), folder)
        lines += shown(keys(document)).splitlines()
    lines.append(f"[{done.returncode}]")
    return "".join(f"{line}\n" for one in lines for line in fitted(one))


def valid(document: Any, name: str, folder: Path) -> None:
    """Hold a document against the schema of this name that the command line prints."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    schema = json.loads(pydlbench_command(["export", "--schema", name], folder).stdout)
    validator(schema).validate(document)


def normal(line: str, folder: Path) -> str:
    """Return a line without what differs between machines, releases and widths of columns."""
    line = line.replace(str(folder), "FOLDER").replace(pydlbench.__version__, "VERSION")
    # The release that took a recorded run, too.
    line = re.sub(r'(\bpydlbench "?)\d+\.\d[\w.+]*', r"\1VERSION", line)
    # Python 3.13 writes an option's metavar once.
    line = re.sub(r"(-\w) ([A-Z]+), (--[\w-]+) \2", r"\1, \3 \2", line)
    # A forecast from this machine's peaks.
    line = re.sub(r"(\(| rows in )[\d.]+ (m?s )?to [\d.]+ m?s\b", r"\1# to # s", line)
    return re.sub(r"(?<=\S) {2,}|^ {8,}", "  ", re.sub("-{3,}", "---", line)).rstrip()


def fitted(line: str) -> list[str]:
    """Return a line cut into lines that can be read."""
    parts = textwrap.wrap(
        line, 160, subsequent_indent="    ", drop_whitespace=False, break_on_hyphens=False
    )
    return [part.rstrip() for part in parts] or [""]


def is_head(line: str) -> bool:
    """Return whether a line is the head of a table: three columns or more, all of them words."""
    columns = re.split(r" {2,}", re.sub(r"95 %|\bp9[09]\b", "p", line).strip())
    return len(columns) >= 3 and not re.search(r"\d|[-=#]{2}", "".join(columns))


def head(line: str) -> str:
    """Return a table's head without units of time and without columns that not every run has."""
    columns = re.split(r" {2,}", re.sub(r"(?<!/)\b[num]?s\b", "#s", line.strip()))
    return "  ".join(column for column in columns if column not in SOMETIMES)


def shown(value: Any, path: str = "") -> str:
    """Return a JSON value as one line per object: its path, then its keys and what they hold."""
    if isinstance(value, list):
        return "".join(shown(one, f"{path}[{index}]") for index, one in enumerate(value))
    plain, below = [], ""
    for key, one in sorted(value.items()):
        if isinstance(one, dict) or (isinstance(one, list) and any(map(is_object, one))):
            below += shown(one, f"{path}.{key}".strip("."))
        else:
            number = isinstance(one, float)
            plain.append(
                key if one is ... else f"{key} {f'{one:.6g}' if number else json.dumps(one)}"
            )
    return f"{path or 'document'}: {', '.join(plain)}\n{below}"


def is_object(value: Any) -> bool:
    """Return whether a list's element needs lines of its own."""
    return isinstance(value, dict | list)


def keys(value: Any, path: str = "") -> Any:
    """Return a measured document's objects with ... for what they hold; a list's as one."""
    if path in VARIABLE:
        return ...
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if path or key not in EARLY}
        return {key: keys(one, f"{path}.{key}".strip(".")) for key, one in kept.items()}
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        together: dict[str, Any] = {}
        for one in (keys(one, path) for one in value):
            together |= {key: held for key, held in one.items() if together.get(key, ...) is ...}
        return [together]
    return ...


def described(schema: dict[str, Any], known: set[str]) -> str:
    """Return the objects of a schema, a line each: ``?`` after optional keys, and what they hold.

    Args:
        schema: with its definitions.
        known: lines that stand above already, to which those of this schema are added: what several
            documents have in common is shown once.
    """
    lines = [f"document: {held_by(schema)}"]
    for name, one in sorted(schema.get("$defs", {}).items()):
        line = f"{name}: {held_by(one)}"
        if line not in known:
            lines.append(line)
            known.add(line)
    return "\n".join(lines)


def held_by(schema: dict[str, Any]) -> str:
    """Return the keys of an object, each with the type of its value."""
    needed = schema.get("required", ())
    return ", ".join(
        f"{key}{'?' * (key not in needed)} {type_of(one)}"
        for key, one in sorted(schema["properties"].items())
    )


def type_of(value: dict[str, Any]) -> str:
    """Return what a schema says of a value: its type, its choices, or the name of an object."""
    if "$ref" in value:
        return str(value["$ref"].rpartition("/")[2])
    if "anyOf" in value:
        return "|".join(map(type_of, value["anyOf"]))
    if "properties" in value:
        return f"{{{held_by(value)}}}"
    if isinstance(value.get("items"), dict):
        return f"[{type_of(value['items'])}]"
    kind = value.get("type", "const" if "const" in value else "any")
    return "|".join(map(str, value.get("enum", kind if isinstance(kind, list) else [kind])))


class PageText(HTMLParser):
    """A page's headings, paragraphs and rows of tables, each as a line; its figures left out."""

    APART = frozenset({"style", "script", "svg"})
    BLOCKS = frozenset(
        {"title", "h1", "h2", "h3", "h4", "p", "li", "tr", "dt", "dd", "figcaption", "caption"}
    )
    CELLS = frozenset({"td", "th", "dd"})

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._apart = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._apart += tag in self.APART
        if tag in self.CELLS:
            self.text += "  "
        elif tag in self.BLOCKS:
            self.text += f"\n{tag} " if tag[0] == "h" else "\n"

    def handle_endtag(self, tag: str) -> None:
        self._apart -= tag in self.APART
        if tag in self.BLOCKS and tag != "dt":
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if not self._apart:
            self.text += re.sub(r"\s+", " ", data)


def page_text(page: str) -> str:
    """Return what a page says, without empty lines."""
    parser = PageText()
    parser.feed(page)
    return "\n".join(line.strip() for line in parser.text.splitlines() if line.strip())


def hold(transcript: Path, folder: Path) -> None:
    """Replay a transcript and fail with the lines that differ."""
    kept, new = transcript.read_text("utf-8"), replay(transcript, folder)
    differing = difflib.unified_diff(kept.splitlines(), new.splitlines(), "kept", "new", "", "", 2)
    assert new == kept, "\n".join(differing)


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) >= 5
    assert DEEP


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(transcript, tmp_path):
    hold(transcript, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("transcript", DEEP, ids=lambda path: path.stem)
def test_transcript_with_frameworks(transcript, tmp_path):
    for framework in ("torch", "tensorflow"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    hold(transcript, tmp_path)


def rewrite(names: list[str]) -> None:
    """Write transcripts anew: those of these names, or all."""
    for transcript in [*TRANSCRIPTS, *DEEP]:
        if not names or transcript.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                text = replay(transcript, Path(folder))
            transcript.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1:])
