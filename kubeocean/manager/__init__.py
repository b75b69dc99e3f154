"""The process that turns each ClusterBinding into the process that serves it.

Invariant: what is made for a binding bears it as its owner, and nothing else is ever changed or deleted.
"""
