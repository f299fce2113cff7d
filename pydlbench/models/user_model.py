"""User models: ``FILE.py:CALLABLE``, ``package.module:CALLABLE`` and ``FILE.onnx``.

Only the framework's process runs the user's code. Here files and folders are searched, and the
definitions of a source file are read from its syntax tree.
"""

import ast
import difflib
import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from pydlbench.errors import UsageError, nearest
from pydlbench.models import model_names

#: Characters that no name of the catalogue contains.
_PATH_CHARACTERS: Final = ":./\\"
#: Frameworks by imported module.
_IMPORTS: Final = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
#: Minimum similarity of an installed module that is suggested; there are many modules.
_MIN_SIMILARITY: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModelSource:
    """The source of a user's model.

    Attributes:
        module: name of the module.
        path: source file of the module; None for a namespace package or a compiled module.
        folder: folder that imports start from: the folder of the file, or the current one.
        attribute: name of the callable, with dots for an attribute of a class.
        is_file: whether the user named a file instead of a module.
    """

    module: str
    path: Path | None
    folder: Path
    attribute: str
    is_file: bool


def is_user_model(name: str) -> bool:
    """Whether a MODEL denotes a user's model, not a name of the catalogue."""
    return any(mark in name for mark in _PATH_CHARACTERS)


def is_onnx(name: str) -> bool:
    """Whether a MODEL denotes an ONNX file."""
    return name.endswith(".onnx")


def find_onnx(name: str) -> Path:
    """Find an ONNX file; its contents are read in onnxruntime's process only.

    Args:
        name: ``FILE.onnx``, relative to the current folder.

    Raises:
        UsageError: there is no such file; names the nearest one.
    """
    path = Path(name)
    if path.is_file():
        return path
    reason = "no file" if path.exists() else "no such file"
    raise UsageError(f"{name}: {reason}{_nearest_files(path, '.onnx')}")


def find_user_model(name: str) -> UserModelSource:
    """Find a user's model.

    Args:
        name: ``FILE.py:CALLABLE``, relative to the current folder, or ``package.module:CALLABLE``.

    Raises:
        UsageError: there is no such file, module or callable; names the nearest one.
    """
    place, _, attribute = name.rpartition(":")
    place, attribute = (place, attribute) if place else (attribute, "")
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    source = _find_file(name, place) if is_file else _find_module(name, place)
    defined = None if source is None else _defined(source)
    if not attribute:
        names = set() if source is None or defined is None else defined - _modules(source)
        public = sorted(name for name in names if not name.startswith("_"))
        choices = _first(public, ("build", "build_model", "make_model", "model")) or ["CALLABLE"]
        raise UsageError(
            f"{name}: no callable; nearest: {', '.join(f'{place}:{name}' for name in choices)}"
        )
    if defined is not None and attribute.partition(".")[0] not in defined:
        near = nearest(attribute, defined) or sorted(defined)[:3]
        choices = [f"{place}:{name}" for name in near]
        raise UsageError(f"{name}: {place} defines no {attribute}{_hint(choices)}")
    path = Path(place) if is_file else source
    return UserModelSource(
        module=Path(place).stem if is_file else place,
        path=None if path is None else path.resolve(),
        folder=Path(place).resolve().parent if is_file else Path.cwd(),
        attribute=attribute,
        is_file=is_file,
    )


def defines(name: str, word: str) -> bool:
    """Whether the source file of a user's model defines a name.

    Args:
        name: name of a model for :func:`find_user_model`.
        word: the name.
    """
    path = find_user_model(name).path
    return path is not None and word in (_defined(path) or ())


def likely_framework(name: str) -> str | None:
    """Return the framework that the file of a model imports.

    Args:
        name: name of a model for :func:`find_user_model`.

    Returns:
        The framework; None if the file imports none or several, or there is no source.
    """
    path = find_user_model(name).path
    if path is None:
        return None
    named = {
        word.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_bytes()))
        for word in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    frameworks = {_IMPORTS[name] for name in named if name in _IMPORTS}
    return frameworks.pop() if len(frameworks) == 1 else None


# -----------------------------------------------------------------------------
# Files and modules.


def _find_file(name: str, place: str) -> Path:
    path = Path(place)
    if path.suffix == ".py" and path.is_file():
        return path
    near = _nearest_files(path, ".py")
    if path.exists():
        raise UsageError(f"{name}: {place} is not a Python file{near}")
    if path.parent.is_dir():
        raise UsageError(f"{name}: no such file: {path}{near}")
    raise UsageError(f"{name}: no such folder: {path.parent}")


def _find_module(name: str, place: str) -> Path | None:
    """Return the source file of a module; None if it has none.

    Unlike in ``importlib.util.find_spec``, the parents of the module are not imported.
    """
    places: list[str] = [str(Path.cwd()), *sys.path]
    spec = None
    above = ""
    for word in place.split("."):
        if word.isidentifier():
            # With the full name, finders would need the parents imported.
            spec = PathFinder.find_spec(word, places)
            if spec is None and not above:
                # An editable install may have its own finder.
                spec = importlib.util.find_spec(word)
        if spec is None or not word.isidentifier():
            raise _no_module(name, above, word, places)
        above += f".{word}" if above else word
        places = list(spec.submodule_search_locations or [])
    assert spec is not None, "a text has at least one part"
    origin = Path(spec.origin) if spec.has_location and spec.origin else None
    return origin if origin is not None and origin.suffix == ".py" else None


def _no_module(name: str, above: str, word: str, places: Sequence[str]) -> UsageError:
    """Return the error for a missing module or submodule."""
    modules = [module.name for module in pkgutil.iter_modules(places)]
    if above:
        near = [f"{above}.{name}" for name in _near(word, modules)]
    else:
        # A file named like the module, or a name of the catalogue with a stray character.
        files = {path.stem: str(path) for path in Path().glob("*.py")}
        near = [files[name] for name in _near(word, files)] + _near(word, model_names())
        near += difflib.get_close_matches(word, modules, 1, _MIN_SIMILARITY)
    module = f"{above}.{word}" if above else word
    return UsageError(f"{name}: no such module: {module}{_hint(dict.fromkeys(near))}")


def _nearest_files(path: Path, ending: str) -> str:
    """Return a hint at the files in a path's folder that resemble its name."""
    files = path.parent.glob(f"*{ending}") if path.parent.is_dir() else ()
    near = _near(path.name, (file.name for file in files))
    return _hint(str(path.parent / name) for name in near)


def _hint(choices: Iterable[str]) -> str:
    names = ", ".join(choices)
    return f"; nearest: {names}" if names else ""


def _near(word: str, choices: Iterable[str]) -> list[str]:
    return nearest(word, [choice for choice in choices if not choice.startswith("_")])


def _first(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return up to three names, usual ones first."""
    return [
        *(name for name in usual if name in names),
        *(name for name in names if name not in usual),
    ][:3]


# -----------------------------------------------------------------------------
# Definitions of a source file.


def _defined(path: Path) -> set[str] | None:
    """Return the names that a module defines; None if they are dynamic.

    Raises:
        UsageError: the file is not valid Python; names the line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the user's code
            tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {type(error).__name__}: {error.msg}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as Python: {error}") from None
    names = set(_names(tree.body))
    return None if names & {"*", "__getattr__", "globals"} else names


def _modules(path: Path) -> set[str]:
    """Return the names of modules that a Python file imports."""
    imports = (
        node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Import)
    )
    return set(_names(list(imports)))


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind; ``*`` and ``globals`` for dynamic ones."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from _names([child])
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _names(child.body)
            else:
                words = (inner for inner in ast.walk(child) if isinstance(inner, ast.Name))
                yield from (
                    word.id
                    for word in words
                    if isinstance(word.ctx, ast.Store) or word.id == "globals"
                )
