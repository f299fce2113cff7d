"""Real steps of whole models in PyTorch and TensorFlow, from the same graph that is composed.

``run(StepCase(model="vgg11", phase="training", framework="torch"), session)`` builds the model in
the framework's own process, checks that it is the graph, that it learns, and times it as a layer is
timed. Nothing here imports a framework except in its own process.
"""

from __future__ import annotations

from pydlbench.endtoend.agreement import Agreement, agree
from pydlbench.endtoend.facts import StepPreparation
from pydlbench.endtoend.record import StepRecord
from pydlbench.endtoend.running import prepare_step, record_of, run, run_in_turn, step_policy
from pydlbench.endtoend.step import FRAMEWORK_MODES, FRAMEWORKS, StepCase

__all__ = [
    "FRAMEWORKS",
    "FRAMEWORK_MODES",
    "Agreement",
    "StepCase",
    "StepPreparation",
    "StepRecord",
    "agree",
    "prepare_step",
    "record_of",
    "run",
    "run_in_turn",
    "step_policy",
]
