"""The planner of the plan page: JavaScript that plans as Python does, without a server."""

from __future__ import annotations

from importlib.resources import files

# In order: each uses those before it.
PLANNER_SCRIPTS = ("hash.js", "order.js", "sharing.js", "windows.js", "options.js", "planner.js")


def planner_script() -> str:
    """The planner as one script, which defines `Planner`."""
    return "\n".join((files(__package__) / name).read_text(encoding="utf-8") for name in PLANNER_SCRIPTS)
