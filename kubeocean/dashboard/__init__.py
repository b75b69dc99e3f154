"""The dashboard: read-only pages about bindings, virtual nodes, pods, problems and time windows.

Invariant: a page contains only what its reader's credentials could read from the API servers, and nothing here writes to a cluster.
"""
