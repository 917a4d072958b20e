"""Environments: conversations of several turns, with tools and other voices; `nodes.interaction` has the node."""
