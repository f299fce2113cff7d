"""Published protocols played on real steps of PyTorch and TensorFlow, in their own processes."""

from __future__ import annotations

from pydlbench.endtoend.playing.case import ProtocolCase
from pydlbench.endtoend.playing.host import Played, play

__all__ = ["Played", "ProtocolCase", "play"]
