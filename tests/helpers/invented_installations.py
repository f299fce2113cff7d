"""Interpreters with a pydlbench whose backends are invented: their kernels' times are known."""

import sysconfig
import venv
from pathlib import Path

import pydlbench
from pydlbench.workers import host

INVENTED = Path(__file__).parents[1] / "compare/rerun/invented"
_SIDE = """
import drifting_backend
from pydlbench.backends import capabilities
drifting_backend.SECONDS.update({seconds!r})
drifting_backend.LIBRARY = {library!r}
capabilities.load = drifting_backend.create
"""

_BOOTSTRAP = """
import json, sys
if own := json.loads(sys.argv[2]):  # another installation has its own
    sys.path[:] = own
    import drifting_backend
    drifting_backend.SECONDS.update({seconds!r})
    from pydlbench.backends import capabilities
    capabilities.load = drifting_backend.create
from pydlbench.workers.worker import main
main()
"""


def invent_workers(monkeypatch, **seconds):
    """Let this installation's workers serve a backend whose kernels drift; torch's are 3 % slower.

    Args:
        monkeypatch: of the test.
        seconds: of a kernel, by backend.
    """
    monkeypatch.syspath_prepend(str(INVENTED))
    monkeypatch.setattr(host, "_BOOTSTRAP", _BOOTSTRAP.format(seconds=seconds))


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
