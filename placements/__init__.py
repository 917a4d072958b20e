"""Where roles run: a search from a graph, models and a cluster to a plan, with its bytes and seconds."""

from __future__ import annotations

from placements.finding import Asked, Found, find
from placements.placing import forecast_again, plan_of
from placements.setting import Setting
from placements.short import overflows

__all__ = ["Asked", "Found", "Setting", "find", "forecast_again", "overflows", "plan_of"]
