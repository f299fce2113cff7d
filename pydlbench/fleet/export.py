"""A fleet's sweep for engines of others: a test of ReFrame, and a Job of Kubernetes.

Both are texts of one file that need nothing of the machine that wrote them. No cluster has run
them: they are tested by what they say.
"""

from __future__ import annotations

import pprint
import re
from typing import TYPE_CHECKING, Final

from pydlbench.fleet.run import with_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.records.fleet import FleetVerdict

__all__ = ["kubernetes", "references", "reframe"]

# What a name of ReFrame's logs and references may not hold: its scopes are parted by colons.
_NO_NAME: Final = "[^A-Za-z0-9_.-]+"

_REFRAME: Final = '''\
"""What {file} asks for as a test of ReFrame: a sweep of pydlbench on one node.

    reframe -c {name}.py -r --performance-report --distribute

``--distribute`` makes a job for each node of a partition. Where ReFrame runs, pydlbench {version}
can be imported, and on the nodes it is on the path. {origin}
"""

import re
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn

SWEEP = {text}
# Seconds, and by which fraction a node may be faster (any) or slower.
REFERENCES = {references}


@rfm.simple_test
class {name}(rfm.RunOnlyRegressionTest):
    descr = {descr}
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    num_tasks = 1
    exclusive_access = True
    executable = "pydlbench"
    executable_opts = ["sweep", "sweep.toml", "--quiet", "--store", "results.sqlite"]
    keep_files = ["results.sqlite"]
    reference = {{"*": REFERENCES}}

    @run_before("run")
    def write_sweep(self):
        Path(self.stagedir, "sweep.toml").write_text(SWEEP, encoding="utf-8")

    def times(self):
        """Return each row's seconds, by names that ReFrame allows."""
        from pydlbench.fleet.gather import gathered

        values = gathered(Path(self.stagedir, "results.sqlite"))["values"]
        return {{re.sub({pattern}, "_", name): one["time_s"] for name, one in values.items()}}

    @sanity_function
    def has_times(self):
        return sn.assert_true(self.times(), msg="no row of the sweep has a time")

    @run_before("performance")
    def take_times(self):
        self.perf_variables = {{
            name: sn.make_performance_function(lambda value=value: value, "s")
            for name, value in self.times().items()
        }}
'''

_KUBERNETES: Final = """\
# What {file} asks for as an Indexed Job of Kubernetes: {pods} pods, each on a node of its own,
# which runs {rounds} rounds and leaves its stores on the volume {claim}:
#
#     kubectl apply -f FILE; kubectl wait --for=condition=complete job/{name} --timeout=24h
#     pydlbench fleet collect FOLDER   # the volume's, wherever it is mounted
#
# For GPUs give the container resources: {{limits: {{nvidia.com/gpu: 1}}}}; for cores of its own
# whole ones as requests and limits, where the kubelet's CPU manager is static.
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  sweep.toml: |2
{text}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {pods}
  parallelism: {pods}
  backoffLimit: {tries}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      # A container that dies begins again in its pod, whose folder /work has what was finished.
      restartPolicy: OnFailure
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - labelSelector:
                matchLabels:
                  app: {name}
              topologyKey: kubernetes.io/hostname
      containers:
        - name: sweep
          image: {image}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
          command:
            - /bin/sh
            - -ec
            - |
              for round in {numbers}; do
                store="/work/$NODE_NAME.$round.sqlite"
                if [ -e "/results/${{store##*/}}" ]; then continue; fi
                # A database is written on the node's own disk; networks' file systems lock badly.
                if [ -e "$store" ]; then
                  # That the container before this one is gone cannot be seen from within.
                  pydlbench runs end last --quiet --store "$store" || :
                  code=0
                  pydlbench sweep --resume last --quiet --store "$store" || code=$?
                  case $code in
                    0) ;;
                    # It died before its sweep had begun, or ran with other libraries.
                    1 | 2) mv "$store" "$store.$(date +%s).aside" ;;
                    *) exit $code ;;
                  esac
                fi
                if [ ! -e "$store" ]; then
                  pydlbench sweep /sweep/sweep.toml --quiet --store "$store"
                fi
                cp "$store" "/results/${{store##*/}}.part"
                mv "/results/${{store##*/}}.part" "/results/${{store##*/}}"
              done
          volumeMounts:
            - name: sweep
              mountPath: /sweep
            - name: work
              mountPath: /work
            - name: results
              mountPath: /results
      volumes:
        - name: sweep
          configMap:
            name: {name}
        - name: work
          emptyDir: {{}}
        - name: results
          persistentVolumeClaim:
            claimName: {claim}
"""


def references(verdict: FleetVerdict) -> dict[str, tuple[float, None, float, str]]:
    """Return ReFrame's references: of each metric the median of the largest kind of nodes.

    Args:
        verdict: on a fleet; how much slower than the median a node may be is its margin.
    """
    timed = [one for one in verdict.metrics if one.median_s is not None]
    group = max(timed, key=lambda one: one.nodes).group if timed else None
    return {
        re.sub(_NO_NAME, "_", one.metric): (one.median_s, None, verdict.beyond, "s")
        for one in timed
        if one.group == group and one.median_s is not None
    }


def reframe(
    file: str,
    text: str,
    version: str,
    found: Mapping[str, tuple[float, None, float, str]] | None = None,
    run: str = "",
) -> str:
    """Return a test of ReFrame that runs a sweep on a node and reports its rows' seconds.

    Args:
        file: name of the sweep's file.
        text: its content.
        version: of pydlbench.
        found: what each row has to reach, of :func:`references`; nothing is asked for by default.
        run: that they are of.
    """
    origin = f"Its references are the medians of run {run}." if found else "It has no references."
    words = re.findall(r"[A-Za-z0-9]+", file.rpartition("/")[2].removesuffix(".toml"))
    return _REFRAME.format(
        file=_plain(file),
        name="Pydlbench" + "".join(one.capitalize() for one in words),
        version=version,
        origin=origin,
        text=pprint.pformat(with_reference(text), width=90),
        references=pprint.pformat(dict(found or {}), width=96, sort_dicts=False),
        descr=repr(f"pydlbench sweep {file}"),
        pattern=repr(_NO_NAME),
    )


def kubernetes(
    file: str, text: str, image: str, *, pods: int, rounds: int, tries: int, claim: str
) -> str:
    """Return a manifest of a Job with a pod per node.

    Args:
        file: name of the sweep's file.
        text: its content.
        image: of containers with pydlbench in it.
        pods: how many nodes.
        rounds: of each node.
        tries: how often a pod's container may die.
        claim: name of the volume claim that the results go to; every node has to reach it.
    """
    stem = re.sub("[^a-z0-9]+", "-", file.rpartition("/")[2].removesuffix(".toml").lower())
    return _KUBERNETES.format(
        file=_plain(file),
        name=f"pydlbench-{stem.strip('-') or 'sweep'}"[:50].rstrip("-"),
        pods=pods,
        rounds=rounds,
        tries=pods * tries,
        claim=claim,
        image=f'"{image}"',
        numbers=" ".join(map(str, range(rounds))),
        text="\n".join(f"    {line}" if line else "" for line in with_reference(text).split("\n")),
    )


def _plain(file: str) -> str:
    """Return a name as it may stand in a comment or a docstring."""
    return re.sub(r"[^\w./ -]", "_", file)
