"""Problems of FlashInfer-Trace: definitions (JSON) with their workloads (JSONL).

A definition has axes, constant or variable, and the shapes of its operands by these axes. A line of
workloads has the values of the variable axes. Products and RMS norms are layers here. Attention is
not: its lengths and its tables of pages are values in other files, for which a layer has no field.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.models.lists import ListEntry, text_of

#: Beginnings of files of this kind have one of these words, besides ``"axes"``.
MARKS: Final = ('"op_type"', '"workload"')
_TYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_NEAREST: Final = "nearest: a definition of op_type gemm or rmsnorm"


def is_flashinfer(head: str) -> bool:
    """Whether a text begins as a definition or workloads do."""
    begins_object = head.lstrip().startswith("{")
    return begins_object and '"axes"' in head and any(word in head for word in MARKS)


def read_problems(path: Path, argument: str) -> Iterator[ListEntry]:
    """Yield an entry for each distinct problem of a file.

    Args:
        path: a definition, with its workloads in the folder ``workloads`` of the same data set, or
            workloads, with their definition in ``definitions``.
        argument: prefix of error messages.

    Raises:
        UsageError: a file cannot be read, or has other ops.
    """
    text = text_of(path, argument)
    if path.suffix == ".jsonl":
        workloads, source = text, path
        definition = _beside(path, f"definitions/**/{path.stem}.json", argument)
        described = _object(text_of(definition, argument), f"{definition}: ")
    else:
        described = _object(text, f"{argument}: ")
        axes = _member(described, "axes", f"{argument}: ").values()
        if all(isinstance(axis, dict) and axis.get("type") == "const" for axis in axes):
            yield _entry(described, {}, f"{path}: ")
            return
        source = _beside(path, f"workloads/**/{path.stem}.jsonl", argument)
        workloads = text_of(source, argument)
    seen: set[str] = set()
    for number, line in enumerate(workloads.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}: "
        value = _object(line, where)
        workload = _member(value, "workload", where) if "workload" in value else value
        entry = _entry(described, _member(workload, "axes", where), where)
        if entry.text not in seen:
            seen.add(entry.text)
            yield entry


def _beside(path: Path, pattern: str, argument: str) -> Path:
    """Return the file of the same name in another folder of the data set."""
    for folder in path.resolve().parents[:4]:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    raise UsageError(
        f"{argument}: no {pattern.replace('/**', '')} in the folders above it; nearest: the "
        "folders definitions and workloads of its data set"
    )


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}not JSON; {_NEAREST}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}no JSON object; {_NEAREST}")
    return value


def _member(value: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    member = value.get(name)
    if not isinstance(member, dict):
        raise UsageError(f"{where}{name}: no JSON object; {_NEAREST}")
    return member


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"size {value!r}")
    return value


def _entry(described: Mapping[str, Any], given: Mapping[str, Any], where: str) -> ListEntry:
    """Return the problem of a definition with the values of its variable axes."""
    try:
        op, name = described["op_type"], str(described.get("name", ""))
        axes = {
            axis: given[axis] if about["type"] == "var" else about["value"]
            for axis, about in described["axes"].items()
        }
        inputs = [each for each in described["inputs"].values() if each["shape"] is not None]
        outputs = list(described["outputs"].values())
        shapes = [[_size(axes[axis]) for axis in each["shape"]] for each in (*inputs, *outputs)]
        types = {each["dtype"] for each in (*inputs, *outputs)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}{error}: not what a definition has; {_NEAREST}") from None
    if op not in ("gemm", "rmsnorm"):
        raise UsageError(
            f"{where}op_type {op}: not read: values of its inputs, such as lengths and tables of "
            f"pages, say what is computed; {_NEAREST}"
        )
    options = {"dt": tuple(_TYPES[each] for each in types if each in _TYPES)}
    entry = _product(shapes) if op == "gemm" else _norm(shapes)
    if entry is None or len(types) > 1 or not options["dt"] or name.startswith("gemma"):
        raise UsageError(f"{where}{name}: {op} with other operands or types; {_NEAREST}")
    text, driver, more = entry
    return ListEntry(text=text, where=where, op=driver, options={**options, **more})


_Parts = tuple[str, str, dict[str, tuple[str, ...]]]


def _product(shapes: Sequence[Sequence[int]]) -> _Parts | None:
    """Return descriptor, driver and options of a product; the second operand may be transposed."""
    if [len(shape) for shape in shapes] != [2, 2, 2]:
        return None
    (m, k), second, (rows, n) = shapes
    if rows != m or sorted(second) != sorted((k, n)):
        return None
    tag = "ba" if [*second] == [n, k] else "ab"
    return f"{m}x{k}:{k}x{n}", "matmul", {"wtag": (tag,)}


def _norm(shapes: Sequence[Sequence[int]]) -> _Parts | None:
    """Return descriptor, driver and options of an RMS norm of rows."""
    if [len(shape) for shape in shapes] != [2, 1, 2] or shapes[0] != shapes[2]:
        return None
    rows, width = shapes[0]
    return f"rmsnorm:mb{rows}ic1ih1iw{width}", "", {}
