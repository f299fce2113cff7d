"""Makes a template's workers serve the invented backend."""

import invented_backend

from pydlbench.backends import capabilities

capabilities.load = invented_backend.create
