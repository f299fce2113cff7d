"""Another installation of this package, described by its own interpreter."""

import hashlib
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydlbench.errors import UsageError

# The process imports this package and reads versions, which takes seconds from a cold disk.
_TIMEOUT_S: Final = 120.0
_DESCRIBE: Final = "from pydlbench.workers.installation import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An interpreter and its pydlbench.

    Attributes:
        python: path of the interpreter; None for this process.
        version: version of its pydlbench.
        environment: versions, builds and variables, as in the record of a run.
    """

    python: str | None
    version: str
    environment: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the path of the interpreter."""
        return self.python or sys.executable


def this_installation() -> Installation:
    """Return the installation of this process."""
    from pydlbench.backends import capabilities
    from pydlbench.version import __version__

    environment = capabilities.environment()
    return Installation(python=None, version=__version__, environment=environment)


def read_installation(python: str, option: str = "--python") -> Installation:
    """Ask an interpreter for its pydlbench.

    Args:
        python: path of the interpreter.
        option: option that named the interpreter, for messages.

    Raises:
        UsageError: the interpreter cannot be run, has no pydlbench, or has a version with other
            worker messages.
    """
    from pydlbench.workers.environment import inherited_environment

    try:
        result = subprocess.run(
            [python, "-P", "-c", _DESCRIBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=inherited_environment(python),
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"{option} {python}: cannot be run ({error.strerror}); nearest: {sys.executable}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{option} {python}: gave no answer for {_TIMEOUT_S:g} s; nearest: {sys.executable}"
        ) from error
    try:
        answer = json.loads(result.stdout.splitlines()[-1])
        installation = Installation(
            python=python, version=answer["version"], environment=answer["environment"]
        )
        same = answer["messages"] == messages()
    except (IndexError, KeyError, TypeError, ValueError):
        last = result.stderr.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
        raise UsageError(
            f"{option} {python}: has no pydlbench that can be asked ({last[0]}); nearest: "
            f"{python} -m pip install pydlbench"
        ) from None
    if not same:
        raise UsageError(
            f"{option} {python}: the workers of its pydlbench {installation.version} take other "
            "messages than this one's; nearest: compare stored runs, pydlbench compare A B"
        )
    return installation


def messages() -> str:
    """Return a digest of the fields of all messages between host and worker.

    Installations with the same digest are compatible, whatever their versions are.
    """
    from pydlbench.backends.base import KernelFacts, Preparation
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
    from pydlbench.timing.chunk import Chunk, ChunkRequest
    from pydlbench.workers.channel import Operation

    classes = (
        *Operation.__args__,
        *(Preparation, KernelSpec, KernelFacts, ChunkRequest, Chunk),
        *(StepSpec, StepPreparation, StepFacts),
    )
    names = {kind.__name__: list(inspect.signature(kind).parameters) for kind in classes}
    return hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()[:12]


def main() -> None:
    """Print this installation as one line of JSON."""
    this = this_installation()
    answer = {"version": this.version, "messages": messages(), "environment": this.environment}
    print(json.dumps(answer))
