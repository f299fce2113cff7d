import importlib
import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from said import says

import pydlbench
from pydlbench.cli import main
from pydlbench.compare import interleaved
from pydlbench.records.measurement import TimeSummary
from pydlbench.report.json import dump, layers_document
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def visited(seconds, spread, number):
    """Six visits around a time, as far apart as the spread, in an order of the row's own."""
    order = (-1, 0.4, -0.2, 0.2, -0.4, 1)
    return tuple(seconds * (1 + spread * x) for x in (*order[number:], *order[:number]))


@pytest.fixture
def write(tmp_path, measurement, run_record):
    """Write a run of six layers as a JSON document: seconds by factor, and how often visited."""

    def build(name, factors=(1.0,) * 6, changes=None, visits=6, spread=0.004, **fields):
        rows = []
        for number, factor in enumerate(factors):
            row = measurement(layer=f"net/conv{number}", problem=f"p{number}", **fields)
            at = 0.05 * factor
            half = 0.001
            time = TimeSummary(
                median=at,
                ci_low=at * (1 - half),
                ci_high=at * (1 + half),
                q1=at,
                q3=at,
                min=at,
                n=24,
                repetitions=visits,
                visit_s=visited(at, spread, number) if visits > 1 else (),
            )
            own = {"time": time, **(changes or {}).get(number, {})}
            rows.append(msgspec.structs.replace(row, **own))
        record = msgspec.structs.replace(run_record, id=name)
        path = tmp_path / f"{name}.json"
        path.write_text(dump(layers_document(record, rows)))
        return str(path)

    return build


def test_a_repeat_says_within_what_rows_are_the_same_and_what_would_tell_more(write, capsys):
    a, b = write("a", visits=1), write("b", (1.01, 0.99, 1, 1.02, 1, 1), visits=1)
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert says(out.splitlines()[0], "no change", "6 rows", "within 25 %")
    assert "more runs" in out
    assert "--interleave" not in out  # both sides would be the same kernels


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ({"visits": 1}, []),
        ({"spread": 0.2}, []),
        ({"changes": {number: {"contended": True} for number in range(6)}}, []),
        ({"factors": (1.05,) * 6}, []),
        ({"spread": 0.2}, ["--quiet"]),
    ],
)
def test_a_gate_that_cannot_tell_ends_with_4_and_says_what_would_decide(
    write, capsys, how, options
):
    a, b = write("a", **{**how, "factors": (1.0,) * 6}), write("b", **how)
    assert main(["compare", a, b, "--fail-on", "slower:3%", *options]) == 4
    err = capsys.readouterr().err
    assert err.count("--fail-on") == 1
    assert any(word in err for word in ("more runs", "measure again"))
    assert "--interleave" not in err


def test_rows_of_two_backends_are_advised_to_be_interleaved(write, capsys):
    a = write("a", visits=1)
    b = write("b", (1.01,) * 6, visits=1, backend="torch", mode="eager")
    assert main(["compare", a, b, "--fail-on", "slower:3%"]) == 4
    out, err = capsys.readouterr()
    assert "--interleave" in out
    assert "--interleave" in err


def test_what_is_slower_beyond_doubt_outweighs_what_cannot_be_told(write, capsys):
    a = write("a")
    b = write("b", (1, 1, 2.5, 1, 1, 1), changes={5: {"contended": True}})
    assert main(["compare", a, b, "--fail-on", "slower:3%"]) == 3
    assert "net/conv2" in capsys.readouterr().err


def test_a_gate_does_not_pass_rows_that_b_has_lost(write, capsys):
    nothing = {0: {"status": "failed", "time": None}}
    gate = ["--fail-on", "slower:50%", "--quiet"]
    assert main(["compare", write("a"), write("b", changes=nothing), *gate]) == 4
    assert says(capsys.readouterr().err, "1 row", "net/conv0", "not in B")
    # What A never had has not become slower.
    assert main(["compare", write("a", changes=nothing), write("b"), *gate]) == 0


@pytest.mark.parametrize(
    ("text", "factor", "code"),
    [
        ("slower:3%", 2.5, 3),
        ("slower", 2.5, 3),
        ("slower:200%", 2.5, 0),
        ("slower:3%", 1.0, 4),
        ("slower:40%", 1.0, 0),
        ("slower:40%", 0.4, 0),
    ],
)
def test_fail_on_is_for_rows_that_are_slower_beyond_doubt(write, capsys, text, factor, code):
    files = write("a"), write("b", (1, 1, factor, 1, 1, 1))
    assert main(["compare", *files, "--fail-on", text]) == code
    assert ("net/conv2" in capsys.readouterr().err) == (code != 0)


def test_json_has_rows_geomean_and_warnings(write, capsys):
    a = write("a")
    b = write("b", (1, 1, 2.5, 1, 1, 1), changes={5: {"algorithm": "jit"}})
    assert main(["compare", a, b, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert len(found["rows"]) == 6
    row = found["rows"][2]
    assert row["layer"] == "net/conv2"
    assert row["ratio"] == pytest.approx(2.5)
    assert row["ci_low"] < 2.5 < row["ci_high"]
    assert row["verdict"] == "SLOWER"
    assert found["geomean"] == pytest.approx(2.5 ** (1 / 6))
    assert any("kernel" in one for one in found["warnings"])
    assert found["counts"] == {"SLOWER": 1, "FASTER": 0, "SAME": 5, "UNCLEAR": 0}


def test_rows_of_one_side_and_failed_ones_are_named(write, capsys):
    a = write("a", changes={0: {"status": "failed", "time": None}})
    b = write("b", (1,) * 5)
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert says(out, "only in A", "1 row", "net/conv5")
    assert says(out, "failed in A, ok in B", "1 row", "net/conv0")


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (
            {"changes": {n: {"status": "skipped", "time": None} for n in range(6)}},
            {},
            ("net/conv0",),
        ),
        (
            {"factors": (1.0,)},
            {"factors": (0.0,)},
            ("net/conv0", "ok", "a.json", "invalid time (0 s)", "b.json"),
        ),
    ],
)
def test_where_nothing_was_timed_in_both_it_is_an_error(write, capsys, a, b, said):
    assert main(["compare", write("a", **a), write("b", **b)]) == 1
    err = capsys.readouterr().err.strip()
    assert says(err, *said)
    assert "\n" not in err


def test_two_backends_are_compared_across_them(write, capsys):
    a, b = write("a"), write("b", (3,) * 6, backend="torch", mode="eager")
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert says(out.splitlines()[0], "3.0x", "slow", "6 of 6")
    assert says(out, "A native", "B torch eager")


@pytest.fixture
def store(tmp_path, measurement, run_record, monkeypatch):
    """A store with runs ``first`` to ``last`` of six layers that scatter by half a percent."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("PYDLBENCH_STORE", str(path))
    rng = random.Random(5)
    with Store.open(path) as opened:
        for number in range(12):
            record = msgspec.structs.replace(
                run_record,
                id=f"run{number}",
                created_utc=f"2030-01-{number + 1:02}T00:00:00Z",
                environment={**run_record.environment, "code": "c0de"},
            )
            opened.begin(record, "layers")
            for layer in range(6):
                slow = 1.12 if (number, layer) == (11, 3) else 1.0
                row = measurement(
                    median=0.05 * slow * math.exp(rng.gauss(0, 0.003)),
                    layer=f"net/conv{layer}",
                    problem=f"p{layer}",
                )
                opened.add(record.id, Entry.from_document("layer", row.to_dict()))
            opened.finish(record, "done")
    return path


def test_from_python_the_same_rows_come_of_the_same_runs(store, capsys):
    assert main(["compare", "last~1", "last", "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with Store.open(store, readonly=True) as opened:
        found = pydlbench.compare_runs("last~1", "last", store=opened)
        wide = pydlbench.compare_runs("last~1", "last", store=opened, same=0.9)
    told = [(row.layer, row.verdict, row.resolution) for row in found.rows]
    assert told == [(one["layer"], one["verdict"], one["resolution"]) for one in printed["rows"]]
    assert {row.verdict for row in wide.rows} & {"SLOWER", "FASTER"} == set()


def test_runs_of_the_store_are_compared_with_what_earlier_ones_tell(store, capsys):
    assert main(["compare", "last~1", "last", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in found["rows"]].index("SLOWER") == 3
    assert found["counts"]["SLOWER"] == 1
    assert found["settings"]["replicates"] == 10
    assert store.exists()


@pytest.mark.parametrize("part", ["code", "packages"])
def test_runs_of_other_code_or_libraries_replicate_nothing(store, capsys, run_record, part):
    with Store.open(store) as opened:
        for number in range(10):
            other = {"code": "c0de", part: {"numpy": "1.0"} if part == "packages" else "other"}
            environment = {**run_record.environment, "packages": {"numpy": "2.0"}, **other}
            opened.describe(
                msgspec.structs.replace(opened.record(f"run{number}"), environment=environment)
            )
        for name in ("run10", "run11"):
            environment = {"python": "3.11.2", "packages": {"numpy": "2.0"}, "code": "c0de"}
            opened.describe(msgspec.structs.replace(opened.record(name), environment=environment))
    assert main(["compare", "run10", "run11", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["replicates"] == 0
    assert {verdict for verdict, count in found["counts"].items() if count} <= {"SAME", "UNCLEAR"}
    assert found["rows"][3]["verdict"] == "UNCLEAR"  # 12 % slower: the interval reaches too far


def test_replicates_of_either_side_count_for_themselves(store, capsys):
    """Nine runs of the old code and three of the new one are kept; A and B are one of each."""
    with Store.open(store) as opened:
        for number in range(12):
            record = opened.record(f"run{number}")
            code = "new" if number in (9, 10, 11) else "old"
            environment = {**record.environment, "code": code}
            opened.describe(msgspec.structs.replace(record, environment=environment))
    assert main(["compare", "run8", "run11", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["replicates"] == 12
    # Row 3 took longer in run11 only: it differs from its own replicates by as much as from A.
    assert not {row["verdict"] for row in found["rows"]} & {"SLOWER", "FASTER"}
    assert [one["what"] for one in found["differences"]] == ["code"]


def test_a_single_earlier_run_tells_nothing_and_is_not_said_not_to_exist(store, capsys):
    with Store.open(store) as opened:
        for number in range(9):
            opened.delete(f"run{number}")
    assert main(["compare", "last~1", "last"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "assumes" in out


def test_a_run_of_other_things_is_not_said_to_be_empty(store, capsys, run_record):
    record = msgspec.structs.replace(run_record, id="played")
    with Store.open(store) as opened:
        opened.begin(record, "step")
        opened.add(
            record.id,
            Entry.from_document("protocol", {"protocol": "mnist-tutorial", "numbers": []}),
        )
        opened.finish(record, "done")
    assert main(["compare", "run11", "played"]) == 2
    text = "played: nothing was measured in it that can be compared (layers, estimates, steps"
    assert text in capsys.readouterr().err


def test_published_figures_are_listed_without_a_run(capsys):
    assert main(["compare", "--published", "--model", "alexnet", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["published"]
    titan = next(one for one in found if one["hardware"] == "Titan X (Maxwell)")
    assert (titan["value"], titan["unit"], titan["year"]) == (70, "ms/batch", 2015)
    assert "alexnet_benchmark.py" in titan["citation"]
    assert "no fully connected" in titan["includes"]


@pytest.fixture
def steps(tmp_path, run_record):
    """A document of ``step`` with one step."""
    step = {
        "model": "vgg16",
        "options": {},
        "batch": 32,
        "phase": "forward",
        "framework": "torch",
        "mode": "eager",
        "precision": "fp32",
        "status": "ok",
        "time_s": {"median": 0.2, "ci_low": 0.19, "ci_high": 0.21, "n": 20},
    }
    path = tmp_path / "steps.json"
    document = {"schema_version": 1, "run": run_record.to_dict(), "model": "vgg16", "steps": [step]}
    path.write_text(json.dumps(document))
    return str(path)


def test_own_steps_stand_beside_published_figures(steps, capsys):
    assert main(["compare", "--published", steps]) == 0
    out = capsys.readouterr().out
    line = next(one for one in out.splitlines() if "Tesla V100" in one and "PyTorch" in one)
    assert "100" in line  # 0.2 s of 32 images is 100 ms of 16
    assert says(line, "per image", "batch 32")
    assert max(map(len, out.splitlines())) <= 150


def test_what_the_source_says_of_a_figure_stands_below_ours(steps, capsys):
    path = Path(steps)
    path.write_text(path.read_text().replace("vgg16", "alexnet"))
    assert main(["compare", "--published", steps]) == 0
    out = " ".join(capsys.readouterr().out.split())
    which = "alexnet fp32 on Titan X (Maxwell), alexnet fp32 on Tesla K40c"
    assert says(out, which, "no LRN layers")


def renamed(path):
    """The same document, of another run."""
    document = json.loads(Path(path).read_text())
    document["run"]["id"] = "another"
    other = Path(path).with_name("another.json")
    other.write_text(json.dumps(document))
    return str(other)


def test_steps_are_compared_like_layers(steps, capsys):
    assert main(["compare", steps, renamed(steps), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["kind"], row["ratio"]) == ("step", 1.0)


def test_a_run_is_not_compared_with_itself(steps, capsys):
    assert main(["compare", steps, steps]) == 2
    assert says(capsys.readouterr().err, "same run", "nearest: pydlbench compare last~1 last")


def test_of_a_sum_that_other_work_disturbed_there_is_no_verdict(tmp_path, run_record, capsys):
    paths = []
    for name, share in (("a", 0.04), ("b", 0.06)):
        estimate = {"model": "mnist", "batch": 4, "phase": "forward", "precision": "fp32"}
        estimate |= {"threads": 1, "disturbed_share": share}
        estimate["estimate"] = {"time_s": 0.3 if name == "b" else 0.1, "half_width_s": 0.001}
        run = run_record.to_dict() | {"id": name}
        document = {"schema_version": 1, "run": run, "kind": "sweep", "estimates": [estimate]}
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(document))
    assert main(["compare", *map(str, paths), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["a"]["contended"], row["b"]["contended"]) == (False, True)
    assert (row["verdict"], row["reason"]) == ("UNCLEAR", "other work disturbed it")


def test_estimates_with_other_numbers_of_threads_are_two(tmp_path, run_record, capsys):
    shared = {"model": "mnist", "batch": 4, "phase": "forward", "precision": "fp32"}
    estimates = [
        {**shared, "threads": count, "estimate": {"time_s": 0.1 / count, "half_width_s": 0.001}}
        for count in (1, 2)
    ]
    run = run_record.to_dict() | {"device": {**run_record.device, "threads": 2}}
    path = tmp_path / "sweep.json"
    document = {"schema_version": 1, "run": run, "kind": "sweep", "estimates": estimates}
    path.write_text(json.dumps(document))
    assert main(["compare", str(path), renamed(path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["threads"], row["a"]["median"]) for row in found["rows"]] == [(1, 0.1), (2, 0.05)]


@pytest.fixture
def drifting_workers(monkeypatch):
    """Let worker processes serve kernels that drift; torch's are 3 % slower."""
    host = importlib.import_module("pydlbench.workers.host")
    folder = Path(__file__).parents[1] / "compare" / "rerun" / "invented"
    monkeypatch.syspath_prepend(str(folder))
    bootstrap = host._BOOTSTRAP.replace(
        "from pydlbench.workers.worker",
        "import drifting_backend; from pydlbench.backends import capabilities; "
        "capabilities.load = drifting_backend.create; from pydlbench.workers.worker",
    )
    monkeypatch.setattr(host, "_BOOTSTRAP", bootstrap)
    # A fork of a template would not run the bootstrap.
    monkeypatch.setattr(host, "template_for", lambda *_: None)


def layer_run(write, name, **fields):
    one = {"layer": "64x64:64x64", "problem": "64x64:64x64", "kind": "gemm", "batch": 64}
    return write(name, (1.0,), changes={0: one}, threads=1, **fields)


INTERLEAVED = ["--interleave", "--repetitions", "6", "--budget", "0.02", "--quiet", "--json", "-"]


@pytest.mark.usefixtures("drifting_workers")
@pytest.mark.parametrize("passes", [0, 2])
def test_ctrl_c_leaves_the_passes_so_far_and_names_the_rows_without_all(
    passes, write, monkeypatch, capsys
):
    def ended(pairs, number, *more):
        if number == passes:
            raise KeyboardInterrupt
        interleaved.take_pass_(pairs, number, *more)

    monkeypatch.setattr(interleaved, "take_pass_", interleaved.take_pass, raising=False)
    monkeypatch.setattr(interleaved, "take_pass", ended)
    a, b = layer_run(write, "a"), layer_run(write, "b", backend="torch", mode="eager")
    assert main(["compare", a, b, *INTERLEAVED]) == 130
    document = json.loads(capsys.readouterr().out)
    assert document["interrupted"] is True
    assert len(document["unfinished"]) == 1
    assert [len(row["by_pass"]) for row in document["rows"]] == [passes] * bool(passes)


@pytest.mark.usefixtures("drifting_workers")
def test_a_kernel_slowed_by_three_percent_is_found_when_interleaved(write, capsys):
    a = layer_run(write, "a")
    b = layer_run(write, "b", backend="torch", mode="eager")
    assert main(["compare", a, b, *INTERLEAVED, "--fail-on", "slower:2%"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["interleaved"]
    (row,) = found["rows"]
    assert row["verdict"] == "SLOWER"
    assert row["ratio"] == pytest.approx(1.03, abs=0.01)
    by_pass = row["by_pass"]
    assert len(by_pass) == found["passes"] == 6
    assert row["ratio"] == pytest.approx(math.exp(sum(map(math.log, by_pass)) / 6))


@pytest.mark.deep
@pytest.mark.usefixtures("drifting_workers")
def test_the_very_same_kernel_is_not(write, capsys):
    a, b = layer_run(write, "a"), layer_run(write, "b", layout_request="nhwc")
    assert main(["compare", a, b, *INTERLEAVED]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["verdict"] == "SAME"
    assert row["a"]["median"] == pytest.approx(1e-3, rel=0.2)


@pytest.mark.deep
@pytest.mark.usefixtures("drifting_workers")
def test_whoever_cannot_be_measured_here_is_named_with_the_reason(write, capsys):
    a = layer_run(write, "a")
    b = layer_run(write, "b", backend="numba", mode="eager")  # the invented backend lacks it
    assert main(["compare", a, b, *INTERLEAVED]) == 1
    err = capsys.readouterr().err
    assert "1 row" in err
    assert "numba" in err


@pytest.mark.deep
@pytest.mark.usefixtures("drifting_workers")
def test_a_gate_does_not_pass_rows_that_cannot_be_measured_again(write, capsys):
    first, second = (
        {"layer": text, "problem": text, "kind": "gemm", "batch": 64}
        for text in ("64x64:64x64", "64x64:64x32")
    )
    a, b = (
        write(
            name,
            (1.0, 1.0),
            changes={0: {**first, "mode": mode}, 1: {**second, "backend": "numba", "mode": mode}},
            threads=1,
        )
        for name, mode in (("a", "eager"), ("b", "compiled"))
    )
    assert main(["compare", a, b, *INTERLEAVED, "--fail-on", "slower:100%"]) == 4
    told = capsys.readouterr()
    assert says(told.err, "--fail-on", "1 row", "numba")
    assert len(json.loads(told.out)["untimed"]) == 1


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
def test_another_commit_or_library_is_not_told_from_itself(write, capsys, pass_):
    a = layer_run(write, "a", library="oneDNN 3.2.0", pass_=pass_)
    slower = {"library": "oneDNN 3.3.0", "pass_": pass_}
    if pass_ != "forward":  # of which backward passes know one only
        slower["propagation"] = "training"
    b = layer_run(write, "b", **slower)
    assert main(["compare", a, b, *INTERLEAVED, "--fail-on", "slower:5%"]) == 2
    told = capsys.readouterr()
    assert not told.out
    assert says(told.err, "--interleave", "libraries", "nearest: leave it out")


def test_a_kernel_with_another_name_is_the_same_kernel(write, capsys):
    a, b = (
        write(
            name,
            (1.0,),
            changes={0: {"layer": layer, "problem": "64x64:64x64", "kind": "gemm", "batch": 64}},
            threads=1,
        )
        for name, layer in (("a", "64x64:64x64"), ("b", "mine/fc"))
    )
    assert main(["compare", a, b, *INTERLEAVED]) == 2
    assert says(capsys.readouterr().err, "--interleave", "both sides would be the same")
