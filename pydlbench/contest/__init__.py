"""One problem through several backends: prepared, sampled in turn, and the slow ones explained."""

from pydlbench.contest.grouping import groups
from pydlbench.contest.host import Host
from pydlbench.contest.running import contest

__all__ = ["Host", "contest", "groups"]
