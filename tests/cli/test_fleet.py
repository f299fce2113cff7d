"""``pydlbench fleet``: from a file to a verdict, and what is refused."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from invented_fleet import FILE, PROGRAM, fleet, visits, write_store
from invented_runs import RUN

from pydlbench.cli import main
from pydlbench.fleet import node
from pydlbench.fleet.run import TABLE, visit_key
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.toml").write_text(FILE, encoding="utf-8")
    (tmp_path / "step.toml").write_text('[[step]]\nmodel = "alexnet"\n', encoding="utf-8")
    return tmp_path


def keep(log_s, run=RUN, change=lambda _: None):
    """Keep a fleet's run with these visits."""
    with Store.open() as store:
        store.begin(run, "fleet", request={"text": FILE})
        for one in visits(log_s):
            change(one)
            store.add(run.id, Entry(TABLE, one, key=visit_key(one["node"], one["round"])))
        store.finish(run, "done")
    return run.id


@pytest.fixture
def _kept():
    rng = np.random.default_rng(1)
    keep(fleet(rng, nodes=12, metrics=2, rounds=5, noise=0.002, slow={3: 1.06}))


REFUSED = [
    ("fleet", "fleet", ...),
    ("fleet verdct last", "verdct", ...),
    ("fleet run", "FILE", "pydlbench fleet run FILE.toml"),
    ("fleet verdict", "RUN", "pydlbench fleet verdict RUN"),
    ("fleet verdict last --rounds 4", "--rounds", ...),
    ("fleet run some.toml --rounds 2", "--rounds 2", "3"),
    ("fleet run some.toml --slots 0", "--slots 0", "1"),
    ("fleet run some.toml --slots 100000", "--slots 100000", "4096"),
    ("fleet run some.toml --beyond 300", "--beyond 300", "2%"),
    ("fleet run some.toml --fail-on failed", "--fail-on failed", ...),
    (
        "fleet run some.toml --model vgg16",
        "--model vgg16",
        '[[step]] with model = "vgg16" in the file',
    ),
    ("fleet run step.toml --model alexnt", "--model alexnt", "--model alexnet"),
    ("fleet run some.toml --nodes a,b", "--nodes a,b", "--on slurm"),
    ("fleet run some.toml --on dask://h:1 --slots 2", "--slots 2", "--on local"),
    ("fleet run some.toml --on slurm --slurm gpu", "--slurm gpu", "--slurm partition=gpu"),
    ("fleet run some.toml --on here", "--on here", ...),
    ("fleet run some.toml --store none", "--store none", "leave it out"),
    ("fleet run none.toml", "none.toml", ...),
    ("fleet run --resume last --rounds 4", "--rounds 4", "leave it out"),
    ("fleet collect", "FOLDER", "pydlbench fleet collect FOLDER"),
    ("fleet collect nowhere", "nowhere", ...),
]


@pytest.mark.parametrize(("line", "named", "nearest"), REFUSED)
@pytest.mark.usefixtures("here")
def test_bad_input_is_one_line_with_the_nearest_choice(line, named, nearest, capsys):
    assert main(shlex.split(line)) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"pydlbench: {named}: ")
    if nearest is not ...:
        assert said.endswith(f"nearest: {nearest}")
    assert not Path("fleet").exists()


def test_a_table_that_is_wrong_is_refused_before_an_engine_is_asked(here, capsys):
    (here / "some.toml").write_text('[[layers]]\nshape = "conv99"\n', encoding="utf-8")
    assert main(["fleet", "run", "some.toml"]) == 2
    assert "conv99" in capsys.readouterr().err


@pytest.mark.usefixtures("_kept")
def test_a_verdict_is_text_json_or_an_exit_code(capsys):
    assert main(["fleet", "verdict", "last"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 of 12 nodes is SLOW: node-3, by ")
    assert main(["fleet", "verdict", "last", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "fleet"
    slow = {one["node"] for one in document["effects"] if one["verdict"] == "SLOW"}
    assert slow == {"node-3"}
    assert main(["fleet", "verdict", "last", "--fail-on", "slow"]) == 3
    assert main(["fleet", "verdict", "last", "--fail-on", "slow", "--beyond", "20%"]) == 0
    capsys.readouterr()
    assert main(["runs", "show", RUN.id]) == 0
    assert capsys.readouterr().out.endswith(out)


@pytest.mark.usefixtures("_kept")
def test_a_run_that_has_not_ended_is_said_to_be_a_part(capsys):
    words = "this run is interrupted"
    assert main(["fleet", "verdict", "last"]) == 0
    assert words not in capsys.readouterr().out
    with Store.open() as store:
        store.finish(RUN, "interrupted")
    assert main(["fleet", "verdict", "last"]) == 0
    assert words in capsys.readouterr().out


def another(log_s, name="20300102-00000abc", updated=lambda _: False):
    """Keep a later run of the same nodes, some of which have another library by then."""

    def change(visit):
        if updated(visit):
            visit.update(kind="two", versions={"numpy": "3"})

    later = RunRecord(id=name, created_utc="2030-01-02T00:00:00+00:00")
    return keep(log_s, later, change)


@pytest.mark.usefixtures("_kept")
def test_two_fleets_are_compared_node_by_node(here, capsys):
    rng = np.random.default_rng(1)
    own = {"nodes": 12, "metrics": 2, "rounds": 5, "noise": 0.002}
    later = another(fleet(rng, **own, slow={3: 1.06, 5: 1.2}))
    assert main(["compare", RUN.id, later]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("1 SLOWER than before: node-5")
    assert main(["compare", RUN.id, later, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"] == [RUN.id, later]
    slower = {one["node"] for one in document["changes"] if one["verdict"] == "SLOWER"}
    assert slower == {"node-5"}
    assert main(["compare", RUN.id, later, "--fail-on", "slower:5%"]) == 3
    assert main(["compare", RUN.id, later, "--fail-on", "slower:40%"]) == 0
    # What is within the margin is no change, whatever is asked for; the report has its own margin.
    assert main(["compare", RUN.id, later, "--fail-on", "slower:1%", "--same", "30%"]) == 0
    capsys.readouterr()
    assert main(["compare", RUN.id, later, "--fail-on", "slower:40%", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["beyond"] == 0.03
    with Store.open() as store:
        store.begin(RunRecord(id="20300103-00000001", created_utc="2030-01-03"), "sweep")
    capsys.readouterr()
    assert main(["compare", RUN.id, "20300103-00000001"]) == 2
    assert "nearest: two of fleet" in capsys.readouterr().err
    assert main(["fleet", "verdict", later, "--json", "verdict.json"]) == 0
    assert main(["compare", RUN.id, "verdict.json"]) == 2
    assert "a verdict has no times of nodes" in capsys.readouterr().err
    assert (here / "verdict.json").is_file()


@pytest.mark.usefixtures("_kept")
def test_a_gate_between_two_fleets_says_of_whom_it_cannot_tell(capsys):
    """One node scatters around a slowdown in the later run, and one is gone."""
    own = {"nodes": 12, "metrics": 2, "rounds": 5, "noise": 0.002}
    log_s = fleet(np.random.default_rng(1), **own, slow={3: 1.06})
    assert main(["compare", RUN.id, another(log_s), "--fail-on", "slower:3%"]) == 0
    noisy = np.array(log_s)
    noisy[:, 7] += np.array([0.3, 0.0, 0.2, 0.0, 0.1])[:, None]
    capsys.readouterr()
    later = another(noisy, "20300103-00000abc")
    assert main(["compare", RUN.id, later, "--fail-on", "slower:3%"]) == 4
    assert "node-7" in capsys.readouterr().err
    later = another(log_s[:, :11], "20300104-00000abc")
    assert main(["compare", RUN.id, later, "--fail-on", "slower:3%"]) == 4
    assert "node-11" in capsys.readouterr().err
    later = another(log_s, "20300105-00000abc", lambda one: one["node"] == "node-2")
    assert main(["compare", RUN.id, later, "--fail-on", "slower:3%"]) == 4
    assert "node-2" in capsys.readouterr().err


@pytest.mark.usefixtures("_kept")
def test_the_page_of_a_fleet_is_that_of_its_verdict(here, capsys):
    assert main(["fleet", "verdict", "last", "--json", "verdict.json"]) == 0
    for run in ("last", "verdict.json"):
        assert main(["report", run, "-o", "page.html"]) == 0
        html = (here / "page.html").read_text(encoding="utf-8")
        assert "<title>node-3: " in html
        assert 'id="nodes-1"' in html
    capsys.readouterr()


def test_what_nodes_have_left_in_a_folder_is_a_fleet(here, capsys):
    (here / "left").mkdir()
    for name in ("a", "b"):
        for number in range(3):
            write_store(here / "left" / f"{name}.{number}.sqlite", 1e-3 * (1 + 1e-4 * number))
    assert main(["fleet", "collect", "left"]) == 0
    assert "no node is known to be slower" in capsys.readouterr().out
    assert main(["fleet", "verdict", "last", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["node"], one["rounds"]) for one in document["nodes"]] == [("a", 3), ("b", 3)]
    capsys.readouterr()
    for words in (["--resume", "last"], ["some.toml", "--resume", "last"]):
        assert main(["fleet", "run", *words]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("pydlbench: --resume last: ")
        assert said.endswith("nearest: pydlbench fleet collect left")


def gate(log_s, dead=()):
    """Return the gate's exit code for a fleet in which some visits, or all of a node, failed."""

    def change(visit):
        if visit["node"] in dead or (visit["node"], visit["round"]) in dead:
            visit |= {"status": "failed", "reason": "its worker has died", "values": {}}

    keep(log_s, change=change)
    return main(["fleet", "verdict", "last", "--fail-on", "slow"])


def healthy():
    return np.random.default_rng(0).normal(-5, 0.001, (3, 20, 1))


@pytest.mark.parametrize(
    ("slower", "dead", "code", "named"),
    [
        ([0, 0, 0], [("node-9", 1)], 0, ""),
        ([0, 0, 0], ["node-9"], 4, "node-9"),
        # Its interval reaches far beyond the margin, its effect does not.
        ([0.1, -0.1, 0.02], [], 0, ""),
    ],
)
def test_a_gate_lets_healthy_nodes_through_and_cannot_tell_of_dead_ones(
    capsys, slower, dead, code, named
):
    log_s = healthy()
    log_s[:, 5, 0] += slower
    assert gate(log_s, dead) == code
    said = capsys.readouterr()
    assert named in said.err
    assert "unclear: " not in said.out


@pytest.mark.parametrize("dead", [(), [("node-5", 0), ("node-5", 2)]])
def test_a_gate_cannot_tell_of_a_node_that_is_slower_and_not_for_certain(dead, capsys):
    """Its rounds scatter far more than the others', or there is only one."""
    log_s = healthy()
    log_s[:, 5, 0] += [0.15, 0.10, 0.25]
    assert gate(log_s, dead) == 4
    said = capsys.readouterr()
    assert "node-5" in said.err
    (line,) = [line for line in said.out.splitlines() if line.startswith("unclear: ")]
    assert line.startswith("unclear: node-5 +")
    assert ("a single round" in line) is bool(dead)


def test_one_node_alone_decides_nothing(capsys):
    keep(np.zeros((3, 1, 1)))
    assert main(["fleet", "verdict", "last", "--fail-on", "slow"]) == 4
    assert "only node of its kind" in capsys.readouterr().out


@pytest.mark.usefixtures("_kept")
def test_a_run_that_is_no_fleet_s_is_refused(capsys):
    other = RunRecord(id="20300102-00000001", created_utc="2030-01-02T00:00:00+00:00")
    with Store.open() as store:
        store.begin(other, "sweep")
    assert main(["fleet", "verdict", other.id]) == 2
    assert "is of sweep, not of fleet" in capsys.readouterr().err
    # The last run of a fleet, whatever came behind it.
    assert main(["fleet", "verdict", "last"]) == 0


@pytest.mark.deep
def test_a_file_becomes_a_verdict_and_a_run_that_was_stopped_goes_on(here, monkeypatch, capsys):
    """On one slot of this machine, whose sweeps are invented."""
    pytest.importorskip("distributed")
    locks = here / "locks"
    locks.mkdir()
    monkeypatch.setattr(node, "LOCKS", locks)
    begun = []
    really = node._run

    def invented(slot, order, words, *more):
        if len(begun) == 1 and not (here / "stopped").exists():
            (here / "stopped").touch()
            raise OSError("an invented reason")
        begun.append(order.round)
        return really(slot, node.replace(order, program=PROGRAM), words, *more)

    monkeypatch.setattr(node, "_run", invented)
    assert main(["fleet", "run", "some.toml", "--tries", "1"]) == 0
    said = capsys.readouterr()
    assert "cpus-0: incomplete: an invented reason" in said.err
    assert "1 of 3 rounds are not whole" in said.out
    assert begun == [0, 2]
    assert main(["fleet", "run", "--resume", "last", "--quiet"]) == 0
    assert begun == [0, 2, 1]
    said = capsys.readouterr()
    assert "not whole" not in said.out
    assert main(["runs", "--json", "-"]) == 0
    (info,) = json.loads(capsys.readouterr().out)["runs"]
    assert (info["kind"], info["status"], info["measurements"]) == ("fleet", "done", 3)
