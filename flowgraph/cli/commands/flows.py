"""`flows`: the shipped flows."""

from __future__ import annotations

from flowgraph.cli import options as opt
from flowgraph.cli.output import print_json, print_table
from flowgraph.flows.flow_files import known_flows


def flows(json: opt.Json = False) -> None:
    """List the shipped and the installed flows."""
    listed = known_flows()
    if json:
        rows = [
            {"name": name, "about": each.flow.about, "path": str(each.path), "package": each.package}
            for name, each in listed.items()
        ]
        print_json(rows)
        return
    several = len({each.package for each in listed.values()}) > 1
    cells = [(name, *([each.package] if several else []), each.flow.about) for name, each in listed.items()]
    print_table(["flow", *(["package"] if several else []), "what it is"], cells)
