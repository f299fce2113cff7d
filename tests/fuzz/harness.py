"""Mutates valid files and texts of each format, and reads them as the commands do.

``python harness.py FORMAT FIRST COUNT`` is a process of its own with limits of time and memory. It
prints a JSON object: how many inputs were accepted and refused, and the findings. Input number N of
a format is the same in every run.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
import zlib
from pathlib import Path
from types import SimpleNamespace

import msgspec

from pydlbench.cli import main
from pydlbench.errors import PydlbenchError

TESTS = Path(__file__).parents[1]
#: Inputs that were findings once, which are read before number 0.
FOUND = Path(__file__).parent / "found"
#: How often each of them is read: another command reads it each time.
FOUND_TURNS = 12
#: CPU seconds of an input, and bytes that may be mapped beside what is loaded.
LIMIT_S, LIMIT_BYTES = 5.0, 1 << 30
DOCUMENTED = {0, 1, 2}
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

VALUES = (
    *(None, True, "", "x" * 5000, "\x1b[31m\x9b\x07", "../../etc/passwd", "\ud800", "a\nb", "nan"),
    *(-1, 0, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, -1e308, 5e-324),
    *(float("nan"), float("inf"), [], {}, [[]], [{}], {"": None}, ["x", 1, None]),
)
TOKENS = (
    *("0", "-1", "1", "99999999999999999999", "1e999", "nan", "\x1b[31m", "\u0660", "=", ":", "x"),
    *("_", ",", '"', "'", "[", "]", "{", "}", "#", "\\", "\n", "\0", "\u2028", "%", "+", "{[]: 1}"),
    *("[" * 3000, "9" * 5000, "-" * 3000, "~" * 50_000),
)


class Slow(BaseException):
    """An input took too long; no handler of an ordinary exception takes this one."""


# ------------------------------------------------------------------------------------------------
# Mutations.


def mutate_bytes(rng, data):
    """Change, remove, repeat or cut some bytes."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 4, 64, 4096))
        change = rng.randrange(5)
        if change == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            del data[at : at + length]
        elif change == 2:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:length]
        elif change == 3:
            data[at : at + 8] = rng.randbytes(8)
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def mutate_text(rng, data):
    """Replace numbers, insert tokens, remove or repeat words and lines."""
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 4))):
        pattern = rng.choice((r"-?\d+(?:\.\d+)?", r"\w+", r"[^\w\s]", r"(?m)^.*\n", r""))
        spots = list(re.finditer(pattern, text[:200_000]))
        if spots:
            spot = rng.choice(spots)
            new = rng.choice((*TOKENS, "", spot[0] * 2, rng.choice(spots)[0]))
            text = text[: spot.start()] + new + text[spot.end() :]
    return text.encode("utf-8", "surrogateescape")


def mutate_value(rng, document):
    """Change a value somewhere inside of a document."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = document
        while isinstance(place, (dict, list)) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = rng.choice(keys)
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.85:
                place = inner
                continue
            change = rng.randrange(4)
            if change == 0:
                del place[key]
            elif change == 1 and isinstance(place, list):
                place.insert(key, inner)
            elif change == 1:
                place[rng.choice(("", "\x1b[31m", "x", "__class__"))] = inner
            else:
                kind = (int, float) if isinstance(inner, (int, float)) else type(inner)
                alike = [value for value in VALUES if isinstance(value, kind)]
                value = rng.choice(alike if alike and rng.random() < 0.6 else VALUES)
                place[key] = copy.deepcopy(value)  # a later change must not change the constant
            break
    return document


def mutate_json(rng, data):
    """Change values of a document, and now and then its bytes."""
    if rng.random() < 0.1:
        return mutate_text(rng, data)
    text = json.dumps(mutate_value(rng, json.loads(data)))
    if rng.random() < 0.02:  # nested deeper than any parser follows
        text = text.replace("null", "[" * 100_000 + "]" * 100_000, 1)
    return text.encode()


def mutate_trace(rng, data):
    """Change a part of a trace, or its packed bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(rng, gzip.compress(data, 1))
    document = json.loads(data)
    for name in ("traceEvents", "nodes"):
        if name in document and rng.random() < 0.95:
            items = document[name]
            begin = rng.randrange(len(items))
            document[name] = items[begin : begin + rng.choice((1, 8, 8, 64))]
    return mutate_json(rng, json.dumps(document).encode())


def mutate_store(rng, data):
    """Change a cell of a table, a stored document, or bytes of the file."""
    if rng.random() < 0.25:
        return mutate_bytes(rng, data)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(data)
    for _ in range(rng.choice((1, 1, 3))):
        table = rng.choice(("runs", "entries", "entries", "layers", "tags"))
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        name = "document" if "document" in names and rng.random() < 0.6 else rng.choice(names)
        key = {"runs": "rowid", "entries": "number", "layers": "entry", "tags": "tag"}[table]
        found = connection.execute(f"SELECT {key}, {name} FROM {table}").fetchall()
        if not found:
            continue
        where, value = rng.choice(found)
        if name in ("document", "request") and value and rng.random() < 0.9:
            value = zlib.compress(mutate_json(rng, zlib.decompress(value)))
        else:
            value = rng.choice([one for one in VALUES if not isinstance(one, (dict, list, bool))])
            value = 2**62 if isinstance(value, int) and abs(value) >= 2**63 else value
            value = "?" if value == "\ud800" else value
        with contextlib.suppress(sqlite3.IntegrityError):
            connection.execute(f"UPDATE {table} SET {name} = ? WHERE {key} = ?", (value, where))
    return connection.serialize()


# ------------------------------------------------------------------------------------------------
# Formats: seeds, how they are mutated, and how an input is read.


def files(folder, pattern):
    """Return the unpacked files of a folder."""
    paths = sorted((TESTS / folder).glob(pattern))
    return [gzip.open(one).read() if one.suffix == ".gz" else one.read_bytes() for one in paths]


def lines_of(text):
    """Return the lines of a text as seeds."""
    return [line.encode() for line in text.strip().splitlines()]


def command(*words):
    """Return a reader that runs a command; INPUT is its file, TEXT its text."""

    def read(rng, path):
        chosen = rng.choice(words).split()
        given = {"INPUT": str(path), "@INPUT": f"@{path}", "OUT": str(path.with_suffix(".out"))}
        if "TEXT" in chosen:
            given["TEXT"] = path.read_bytes().decode("utf-8", "surrogateescape")
        return main([given.get(word, word) for word in chosen])

    return read


def read_literal(_rng, path):
    """Read a value of --set, as the process does that calls the user's code."""
    from pydlbench.backends.steps import user_code

    user_code._value(path.read_bytes().decode("utf-8", "surrogateescape"))
    return 0


def read_onnx(_rng, path):
    """Read the head of an ONNX file, as the worker does."""
    from pydlbench.backends.onnxruntime import backend

    graph = backend.read_graph("net.onnx", str(path))
    backend.parameters(graph)
    backend.types_of(graph)
    return 0


def onnx_seeds():
    """Return a small ONNX file."""
    sys.path.insert(0, str(TESTS / "helpers"))
    import onnx_network

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx_network.save(onnx_network.network(), path)
        return [path.read_bytes()]


def read_xplane(_rng, path):
    """Read a profile of JAX, whose events come from JAX's own reader."""
    from pydlbench.traces import xplane

    try:
        msgspec.json.decode(path.read_bytes(), type=list[xplane.PlaneEvent])
    except msgspec.DecodeError:  # no process of ours writes it
        return 1
    done = SimpleNamespace(returncode=0, stdout=path.read_bytes(), stderr=b"")
    real, xplane.subprocess.run = xplane.subprocess.run, lambda *_, **__: done
    try:
        return main(["trace", str(path), "--store", "none"])
    finally:
        xplane.subprocess.run = real


def xplane_seeds():
    """Return the events of a step on a device, and of one on a CPU."""
    step = ["/host:CPU", "python", "train", 0.0, 9000.0, {"step_num": 1}]
    seeds = []
    for plane in ("/device:GPU:0", "/host:CPU"):
        ran = []
        for number in range(8):
            name = f"fusion.{number}"
            noted = {"hlo_op": name, "hlo_module": "jit_step", "correlation_id": number}
            ran.append([plane, "Stream 1", name, 100.0 + 900 * number, 500.0 + number, noted])
        launches = [["/host:CPU", "python", "launch", 50.0, 10.0, {"correlation_id": 3}]]
        seeds.append(json.dumps([step, *launches, *ran]).encode())
    return seeds


def store_seeds():
    """Return a store with a run of each command."""
    from pydlbench.store.documents import load
    from pydlbench.store.store import Store

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        with Store.open(path) as store:
            for file in sorted((TESTS / "end_to_end/recorded").glob("*.json")):
                loaded = load(str(file), None)
                with contextlib.suppress(PydlbenchError):  # two of them may be the same run
                    store.begin(loaded.record, loaded.info.kind)
                    store.add_all(loaded.record.id, loaded.entries)
                    store.finish(loaded.record, "done")
                    store.tag(loaded.record.id, "base")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")  # a log cannot be deserialized
        return [path.read_bytes()]


RECORDED = (
    *("runs show INPUT", "export INPUT --format csv", "export INPUT --format long"),
    *("export INPUT --format md", "export INPUT --format json", "export INPUT --format trace"),
    *("compare INPUT INPUT", "report INPUT -o OUT", "compare --published INPUT"),
)
STORED = (
    *("runs --store INPUT", "runs show last --store INPUT", "runs show last~3 --store INPUT"),
    *("runs --tag base --store INPUT", "runs delete last --yes --store INPUT"),
    *("export last~2 --format long --store INPUT", "export base --format md --store INPUT"),
    *("compare last~1 last --store INPUT", "report last~4 -o OUT --store INPUT"),
    *("runs end last --store INPUT", "sweep --resume last --dry-run --store INPUT"),
)
TRACED = ("trace INPUT --store none", "trace INPUT --on h100-sxm --all --json OUT --store none")

DESCRIPTORS = """
mb128ic192ih13oc384oh13kh3ph1
g2mb8_ic16oc32_ih7oh7kh3sh1dh0ph1n"two words"
mb2ic8id5ih6iw7oc4kd3kh3kw3pd1ph1pw1
mb2ic3iw16000oc16ow16000kw3pw1dw1
deconv:mb2ic8ih7oc4oh13kh3sh2ph1
128x9216:9216x4096
2x1x5x16:1x4x16x8
ic3ih8oh4kh2sh2
relu:mb128ic96ih55
lstm:l1t4mb2sic8slc8dhc8dic8
softmax:8x1000
vgg*/fc*
resize:mb2ic3ih8oh16
attention:mb1nh4sq16sk16hd8
"""
SETTINGS = """
lrn=off,classes=10
classes=1001
optimizer=sgd,lrn=false
classes=[1,2],lrn=off
"""
LITERALS = """
{"sizes": [1, 2.5e3, (True, None)], 3: {4}, b"bytes": -1j}
[[[[1, 2], 3], "text"], {}]
"""
SWEEPS = """
title = "a title"
[defaults]
batch = [1, 16]
[[layers]]
shape = "alexnet/conv*"
pass = "all"
precision = ["fp32", "bf16"]
exclude = [{ precision = "bf16", pass = "backward-*" }]
[[estimate]]
model = ["alexnet-owt", "vgg11"]
phase = ["forward", "training"]
set = { lrn = false, classes = 10 }
[[breakdown]]
model = "mnist"
defaults = []
repetitions = 6
"""

#: Name: the seeds, the mutation, the reader, and the ending of the file.
FORMATS = {
    "descriptor": (lambda: lines_of(DESCRIPTORS), mutate_text, command("shapes TEXT"), ""),
    "benchdnn": (
        lambda: files("ops/benchdnn", "shapes_*"),
        mutate_text,
        command("shapes @INPUT", "shapes @INPUT --op conv --batch 2", "shapes @INPUT --op matmul"),
        "",
    ),
    "set": (
        lambda: lines_of(SETTINGS),
        mutate_text,
        command("estimate alexnet-owt --summary --set TEXT", "step mnist --set TEXT --batch 0"),
        "",
    ),
    "literal": (lambda: lines_of(LITERALS), mutate_text, read_literal, ""),
    "log": (lambda: files("traces/data", "*.log.gz"), mutate_text, command(*TRACED), ".log"),
    "trace": (lambda: files("traces/data", "*.json.gz"), mutate_trace, command(*TRACED), ".json"),
    "xplane": (xplane_seeds, mutate_json, read_xplane, ".xplane.pb"),
    "record": (
        lambda: files("end_to_end/recorded", "*.json"),
        mutate_json,
        command(*RECORDED),
        ".json",
    ),
    "sweep": (
        lambda: [SWEEPS.encode(), *files("end_to_end/recorded", "*.toml")],
        mutate_text,
        command("sweep INPUT --dry-run --store none"),
        ".toml",
    ),
    "store": (store_seeds, mutate_store, command(*STORED), ".sqlite"),
    "onnx": (onnx_seeds, mutate_bytes, read_onnx, ".onnx"),
}


# ------------------------------------------------------------------------------------------------


def judge(read, rng, path):
    """Read an input; return whether it is accepted, and what no input may cause."""
    out, err = io.StringIO(), io.StringIO()
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = read(rng, path)
    except PydlbenchError as error:  # of a reader without a command line
        code = 2
        err.write(f"pydlbench: {error}")
    except Slow:
        return False, f"more than {LIMIT_S} s"
    except BaseException as error:  # noqa: BLE001 - each is a finding
        place = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(place))
        return False, f"{type(error).__name__}: {str(error)[:200]} at {where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    printed = out.getvalue() + err.getvalue()
    if code not in DOCUMENTED:
        return False, f"exit code {code}"
    if steering := STEERING.search(printed.replace("\t", " ")):
        return (
            False,
            f"control character {steering[0]!r} in {printed[steering.start() - 60 :][:120]!r}",
        )
    told = [line for line in err.getvalue().splitlines() if line.startswith("pydlbench: ")]
    if code == 2 and len(told) != 1:
        return False, f"{len(told)} lines that say what is wrong: {err.getvalue()[:200]!r}"
    return code == 0, None


def run(name, first, count):
    """Read the inputs of a format; return how many were accepted and refused, and findings."""
    seeds, mutate, read, ending = FORMATS[name]

    def stop(*_):
        raise Slow

    signal.signal(signal.SIGPROF, stop)
    turns = range(0 if first else FOUND_TURNS)
    known = [path for path in sorted(FOUND.glob(f"{name}-*")) for _ in turns]
    bases = seeds()
    counts, findings = {True: 0, False: 0}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-len(known), count):
            rng = random.Random(f"{name} {first + number}")
            path = Path(folder) / f"input{ending}"
            if number < 0:
                shutil.copyfile(known[number], path)
            else:
                path.write_bytes(mutate(rng, rng.choice(bases)))
            data = path.read_bytes()
            accepted, finding = judge(read, rng, path)
            counts[accepted] += 1
            if finding:
                place = known[number].name if number < 0 else f"{name}-{first + number}{ending}"
                findings.append(f"{place}: {finding}")
                Path(tempfile.gettempdir(), f"pydlbench-{place}").write_bytes(data)
            if number == -1 or (number == 0 and not known):  # all that it needs is loaded
                mapped = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
                resource.setrlimit(resource.RLIMIT_DATA, (mapped + LIMIT_BYTES,) * 2)
            for rest in Path(folder).iterdir():
                shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    return {"accepted": counts[True], "refused": counts[False], "findings": findings}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
