"""Interpreters with a pydlbench whose backends are invented: their kernels' times are known."""

import sysconfig
import venv
from pathlib import Path

import pydlbench

INVENTED = Path(__file__).parents[1] / "compare/rerun/invented"
_SIDE = """
import drifting_backend
from pydlbench.backends import capabilities
drifting_backend.SECONDS.update({seconds!r})
drifting_backend.LIBRARY = {library!r}
capabilities.load = drifting_backend.create
"""


def installation(folder, library="invented 1", code="", **seconds):
    """Return the path of an interpreter in a virtual environment of its own.

    Args:
        folder: where; it is made.
        library: that rows show.
        code: run once pydlbench can be imported.
        seconds: of a kernel, by backend.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = [Path(pydlbench.__file__).parents[1], sysconfig.get_path("purelib"), INVENTED]
    (packages / "invented.pth").write_text("\n".join([*map(str, paths), "import invented_side"]))
    side = _SIDE.format(seconds=seconds, library=library)
    (packages / "invented_side.py").write_text(f"{side}\n{code}\n")
    return str(folder / "bin" / "python")
