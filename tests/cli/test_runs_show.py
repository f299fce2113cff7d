"""``runs show``: what is kept is printed as its command had printed it."""

import pytest
from invented_rows import time_of
from invented_sweep import Sessions
from said import says

from pydlbench.cli import main
from pydlbench.cli import sweep as sweep_command
from pydlbench.cli.parser import read
from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving, Tried
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.report.diagnose import diagnosis_report
from pydlbench.report.text import as_text
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def parse(command, *words):
    return read([command.__name__.rpartition(".")[2], *words])[0]


def shown(capsys, run="last"):
    capsys.readouterr()
    assert main(["runs", "show", run]) == 0
    return capsys.readouterr().out


SWEEP = """
[[layers]]
shape = ["alexnet/conv3", "mnist/conv1", "mnist/pool1"]
batch = 4
[[estimate]]
model = "mnist"
batch = [4, 8]
threads = [1, 2]
"""


def test_a_sweep_shows_its_layers_and_every_estimate(tmp_path, monkeypatch, capsys):
    # Two threads, however many CPUs there are.
    monkeypatch.setattr("pydlbench.devices.cpu.affinity.choose_cpus", lambda *_: (0, 1))
    path = tmp_path / "a.toml"
    path.write_text(SWEEP, encoding="utf-8")
    sessions = Sessions()
    assert sweep_command.run(parse(sweep_command, str(path), "--quiet"), sessions.open) == 0
    out = shown(capsys)
    assert "alexnet/conv3" in out
    for batch in (4, 8):
        assert out.count(f"mnist  batch {batch}  forward  fp32") == 2
    # The tables of four estimates, whose kernels partly are those of the table of layers.
    assert out.count("images/s") >= 4


@pytest.mark.parametrize("measured", [True, False])
def test_a_sweep_that_was_stopped_within_its_first_estimate_says_so(tmp_path, capsys, measured):
    path = tmp_path / "a.toml"
    path.write_text('[[estimate]]\nmodel = "mnist"\nbatch = 4\n', encoding="utf-8")

    def stop(count):
        if count == 2:
            raise KeyboardInterrupt

    sessions = Sessions(stop)
    sessions.failing = set() if measured else {"mnist"}
    args = parse(sweep_command, str(path), "--quiet")
    assert sweep_command.run(args, sessions.open) == 130
    capsys.readouterr()
    assert main(["runs", "show", "last"]) == 0
    out, err = capsys.readouterr()
    assert says(out.splitlines()[0], "interrupted")
    # The sum of the two kernels, or where the rows are that have no sum.
    assert says(out, "conv2", "fc1", "ended before it was measured") == measured
    assert says(err, "pydlbench export") != measured


def make_diagnosis():
    def finding(problem, saved_s):
        return Finding(
            problem=problem,
            where=("fc6 forward",),
            symptom="fc6 takes 12 ms, 4 ms natively",
            evidence=("in turn", "by its log"),
            causes=(
                Cause(name="weights not packed", meaning="in each step", seconds=0.6 * saved_s),
                Cause(name="slower kernel", meaning="gemm", seconds=0.4 * saved_s, where=("fc6",)),
            ),
            saving=Saving(
                seconds=saved_s,
                low=0.9 * saved_s,
                high=1.1 * saved_s,
                step_s=0.11,
                subject="layer",
                how="in turn",
                rounds=9,
            ),
            next="pydlbench layers --shape fc6",
            parts=frozenset({"fc6 forward"}),
            alternatives=("mkldnn saves 2 ms",),
            overlaps=(2,),
        )

    step = StepRecord(
        spec=StepSpec(model="alexnet-owt", batch=4, options={"lrn": "off"}),
        status="ok",
        time=time_of(0.1),
        images_per_s=40.0,
        library="torch 2",
        threads=2,
    )
    return Diagnosis(
        step=step,
        findings=(finding("slow operators", 0.03), finding("page faults", 0.01)),
        tried=(Tried(what="one thread", problem="launches", result="no gain"),),
        untried=(Tried(what="jemalloc", problem="faults", result="not here", ran=False),),
        notes=("the machine was busy",),
        seconds=12.0,
    )


def keep_diagnosis(store_path, run_record, document):
    with Store.open(store_path) as store:
        store.begin(run_record, "diagnose")
        store.add(run_record.id, Entry.from_document("findings", document))
        store.finish(run_record, "done")


def test_a_diagnosis_is_read_back_as_it_was(store_path, run_record, capsys):
    found = make_diagnosis()
    again = Diagnosis.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    keep_diagnosis(store_path, run_record, found.to_dict())
    assert shown(capsys).endswith(f"\n\n{as_text(diagnosis_report(run_record, found))}\n")


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.pop("step"),
        lambda document: document.update(findings=3),
        lambda document: document["findings"][0].pop("saving"),
        lambda document: document["findings"][0]["saving"].update(step_s=0.0),
        lambda document: document["findings"][0].update(causes=["some"]),
    ],
)
def test_a_damaged_diagnosis_is_one_line(damage, store_path, run_record, capsys):
    document = make_diagnosis().to_dict()
    damage(document)
    keep_diagnosis(store_path, run_record, document)
    assert main(["runs", "show", run_record.id]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert run_record.id in error
