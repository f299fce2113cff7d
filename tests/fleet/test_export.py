"""A fleet's sweep as a test of ReFrame and a Job of Kubernetes: read, as no cluster has run it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from invented_fleet import FILE, PROGRAM, VARIABLE, visits, write_store
from raw_store import execute

from pydlbench.errors import UsageError
from pydlbench.fleet.export import kubernetes, references, reframe
from pydlbench.fleet.gather import collected, gathered
from pydlbench.fleet.run import with_reference
from pydlbench.fleet.verdict import judge_visits
from pydlbench.store.store import Store

ODD = '# "quoted" \'\'\' """ \\n {braces}\n' + FILE


def verdict(names=("a/b forward fp32", "2x2:2x2 forward fp32")):
    log_s = np.log([1e-3, 2e-3]) + np.random.default_rng(1).normal(0, 1e-3, (3, 5, 2))
    found = visits(log_s)
    for one in found:
        one["values"] = dict(zip(names, one["values"].values(), strict=True))
    return judge_visits(found, 0.03)


def loaded(text, monkeypatch):
    """Run a test of ReFrame's file in an invented ReFrame, and return its class and its globals."""
    rfm, sanity = ModuleType("reframe"), ModuleType("reframe.utility.sanity")
    found = []
    rfm.simple_test = found.append
    rfm.RunOnlyRegressionTest = object
    sanity.make_performance_function = lambda function, unit: (function(), unit)
    sanity.assert_true = lambda value, msg: bool(value) or msg
    utility = ModuleType("reframe.utility")
    rfm.utility, utility.sanity = utility, sanity
    for name, module in (
        ("reframe", rfm),
        ("reframe.utility", utility),
        ("reframe.utility.sanity", sanity),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    scope = {"run_before": lambda _: lambda function: function, "sanity_function": lambda one: one}
    exec(compile(text, "test.py", "exec"), scope)
    return found[0], scope


def test_the_test_of_reframe_runs_the_sweep_and_reads_its_times(tmp_path, monkeypatch):
    own, scope = loaded(reframe('odd "name".toml', ODD, "1.0"), monkeypatch)
    assert own.__name__ == "PydlbenchOddName"
    assert own.executable == "pydlbench"
    assert own.executable_opts[:2] == ["sweep", "sweep.toml"]
    assert own.reference == {"*": {}}
    assert scope["SWEEP"] == with_reference(ODD)
    test = own()
    test.stagedir = str(tmp_path)
    test.write_sweep()
    assert (tmp_path / "sweep.toml").read_text(encoding="utf-8") == with_reference(ODD)
    write_store(tmp_path / own.executable_opts[-1], 2e-3)
    assert test.has_times() is True
    test.take_times()
    name = "alexnet_conv2_forward_fp32_batch_128"
    assert test.perf_variables[name] == (2e-3, "s")


def test_references_are_medians_by_names_without_colons(monkeypatch):
    found = references(verdict())
    assert found.keys() == {"a_b_forward_fp32", "2x2_2x2_forward_fp32"}
    median, low, high, unit = found["a_b_forward_fp32"]
    assert (low, high, unit) == (None, 0.03, "s")
    assert median == pytest.approx(1e-3, rel=0.01)
    own, _ = loaded(reframe("some.toml", FILE, "1.0", found, "run"), monkeypatch)
    assert own.reference == {"*": found}


def test_the_names_of_references_are_those_of_the_times(tmp_path, monkeypatch):
    """What a node brings and what it has to reach would otherwise never meet."""
    write_store(tmp_path / "results.sqlite", 2e-3)
    facts = gathered(tmp_path / "results.sqlite")
    whole = [{**visits(np.zeros((3, 4, 1)))[n], **facts} for n in range(12)]
    own, _ = loaded(
        reframe("s.toml", FILE, "1", references(judge_visits(whole, 0.03))), monkeypatch
    )
    test = SimpleNamespace(stagedir=str(tmp_path))
    assert own.times(test).keys() == own.reference["*"].keys()


def manifest(text=FILE, **changes):
    yaml = pytest.importorskip("yaml")
    given = {"pods": 4, "rounds": 3, "tries": 2, "claim": "kept", **changes}
    return list(yaml.safe_load_all(kubernetes("Some file.toml", text, "r.io/p:1", **given)))


@pytest.mark.parametrize("text", [FILE, ODD, "  # indented\n" + FILE, "\n\n" + FILE])
def test_the_manifest_has_the_file_and_a_pod_for_each_node(text):
    config, job = manifest(text)
    assert config["data"]["sweep.toml"].rstrip("\n") == with_reference(text).rstrip("\n")
    assert job["kind"] == "Job"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = spec["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"] == labels
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == "kept"
    assert volumes["sweep"]["configMap"]["name"] == config["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["image"] == "r.io/p:1"
    assert {one["name"] for one in container["volumeMounts"]} == volumes.keys()


def script_of(folder):
    """Return what a pod runs, in a folder with results, work and bin of its own."""
    _, job = manifest()
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    for name in ("results", "work", "bin", "sweep"):
        (folder / name).mkdir()
        script = script.replace(f" /{name}/", f" {folder}/{name}/")
        script = script.replace(f'"/{name}/', f'"{folder}/{name}/')
    return script


def test_what_a_pod_runs_is_whole_after_a_death_and_not_run_twice(tmp_path):
    """Its script on this machine, with an invented pydlbench that dies once."""
    script = script_of(tmp_path)
    program = tmp_path / "bin" / "pydlbench"
    program.write_text(
        '#!/bin/sh\n[ "$1" = runs ] && exit 2\necho "$2" >> "$LOG"\n'
        '[ "$2" = --resume ] && echo whole > "$6" && exit 0\n'
        'echo part > "$5"; case "$5" in *.1.sqlite) exit 137;; esac\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "NODE_NAME": "n7", "LOG": str(log)}
    codes = [
        subprocess.run(["/bin/sh", "-ec", script], env=environment, check=False).returncode
        for _ in range(2)
    ]
    assert codes == [137, 0]
    found = {path.name: path.read_text() for path in (tmp_path / "results").iterdir()}
    assert found == {"n7.0.sqlite": "part\n", "n7.1.sqlite": "whole\n", "n7.2.sqlite": "part\n"}
    begun = log.read_text().split()
    file = f"{tmp_path}/sweep/sweep.toml"
    assert begun == [file, file, "--resume", file]


@pytest.mark.deep
def test_a_pod_goes_on_in_a_new_container_after_kill_9(tmp_path):
    """With pydlbench itself, but for the times; a container has processes of its own."""
    script = script_of(tmp_path)
    (tmp_path / "sweep" / "sweep.toml").write_text(FILE, encoding="utf-8")
    program = tmp_path / "bin" / "pydlbench"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = runs ] && exec {sys.executable} -m pydlbench "$@"\n'
        f'exec {shlex.join(PROGRAM)} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    # Round 0 was killed before its sweep had begun, round 2 has other libraries.
    stores = [tmp_path / "work" / f"n7.{number}.sqlite" for number in range(3)]
    with Store.open(stores[0]):
        pass
    write_store(stores[2], status="interrupted")
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "NODE_NAME": "n7",
        VARIABLE: json.dumps({"kill": {"n7.1.": 1}}),
    }

    def container():
        return subprocess.run(["/bin/sh", "-ec", script], env=environment, check=False).returncode

    assert container() == 137
    ((writer,),) = execute(stores[1], "SELECT writer FROM runs")
    writer = {**json.loads(writer), "pids": "pid:[1]"}
    execute(stores[1], "UPDATE runs SET writer = ?", json.dumps(writer))
    with Store.open(stores[1], readonly=True) as store:
        assert [one.status for one in store.runs()] == ["running"]
    assert container() == 0
    found = {one.round: one for one in collected(tmp_path / "results")}
    assert [found[number].status for number in range(3)] == ["ok"] * 3
    assert {len(one.values) for one in found.values()} == {2}
    assert len(list((tmp_path / "work").glob("*.aside"))) == 2
    # A container that died between the end of a sweep and its copy.
    (tmp_path / "results" / "n7.2.sqlite").unlink()
    assert container() == 0
    assert (tmp_path / "results" / "n7.2.sqlite").is_file()
    assert len(list((tmp_path / "work").glob("*.aside"))) == 2


def test_stores_of_a_folder_are_visits(tmp_path):
    for number in range(2):
        write_store(tmp_path / f"host.example.{number}.sqlite")
    (tmp_path / "bad.0.sqlite").write_bytes(b"no store" * 100)
    (tmp_path / "other.sqlite").write_bytes(b"")
    found = {(one.node, one.round): one for one in collected(tmp_path)}
    assert found.keys() == {("host.example", 0), ("host.example", 1), ("bad", 0)}
    assert found["bad", 0].status == "failed"
    one = found["host.example", 1]
    assert one.status == "ok"
    assert one.values["alexnet/conv3 forward fp32 batch 128"]["time_s"] == 1e-3
    with pytest.raises(UsageError, match=r"NODE.ROUND.sqlite.*nearest"):
        collected(tmp_path / "nowhere")
