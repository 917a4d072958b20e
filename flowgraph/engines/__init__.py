"""What is known of engines that run in an environment of their own: their packages, versions, and how they start.

Data and installing only; what talks to a running engine is in `flowgraph.executors`.
"""
