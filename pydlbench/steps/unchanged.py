"""Files that must stay as they are while two models are compared: their code, and A's results."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydlbench.models.user_model import find_user_model, is_onnx, is_user_model
from pydlbench.records.step import StepSpec

_PACKAGE: Final = Path(__file__).parents[1]


def fingerprint(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a checksum of each file."""
    return {path: _checksum(path) for path in paths if path.is_file()}


def sources(steps: Iterable[StepSpec]) -> set[Path]:
    """Return the files of this package and of models, with those beside them that they import."""
    paths = {*_PACKAGE.rglob("*.py")}
    for step in steps:
        for name in (step.model, None if step.own is None else step.own.reference):
            if name is None or not is_user_model(name):
                continue
            path = Path(name) if is_onnx(name) else find_user_model(name).path
            if path is None:
                continue
            words = {*re.findall(rb"\w+", path.read_bytes())} if path.suffix == ".py" else set()
            beside = path.parent.glob("*.py")
            paths |= {path, *(other for other in beside if other.stem.encode() in words)}
    return paths


def changed(before: Mapping[Path, str]) -> tuple[str, ...]:
    """Return why no side is ranked, if files have changed; empty if none has."""
    wrong = sorted(path for path, checksum in before.items() if _checksum(path) != checksum)
    if not wrong:
        return ()
    reason = (
        f"neither is ranked: {wrong[0]} has changed while the models ran, and other processes of "
        "the comparison read it; nearest: files that stay as they are"
    )
    return (reason,)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
