"""A fleet's sweep as a test of ReFrame and a Job of Kubernetes: read, as no cluster has run it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from invented_fleet import FILE, visits, write_store

from pydlbench.errors import UsageError
from pydlbench.fleet.export import kubernetes, references, reframe
from pydlbench.fleet.gather import collected, gathered
from pydlbench.fleet.run import with_reference
from pydlbench.fleet.verdict import judge_visits

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


def test_what_a_pod_runs_is_whole_after_a_death_and_not_run_twice(tmp_path):
    """Its script on this machine, with an invented pydlbench that dies once."""
    _, job = manifest()
    script = job["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    for name in ("results", "work", "bin"):
        (tmp_path / name).mkdir()
        script = script.replace(f"/{name}/", f"{tmp_path}/{name}/")
    program = tmp_path / "bin" / "pydlbench"
    program.write_text(
        '#!/bin/sh\necho "$2" >> "$LOG"\n[ "$2" = --resume ] && echo whole > "$6" && exit 0\n'
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
    assert begun == ["/sweep/sweep.toml", "/sweep/sweep.toml", "--resume", "/sweep/sweep.toml"]


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
