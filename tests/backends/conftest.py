from __future__ import annotations

import sys
from pathlib import Path

# The tests below this folder take it from here: pytest puts no folder on the path.
sys.path.insert(0, str(Path(__file__).parent))
import problems  # noqa: F401 - as said

sys.path.pop(0)
