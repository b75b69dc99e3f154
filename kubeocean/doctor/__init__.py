"""Checks of a hub and its workers: each is a function of what was read, and names a problem with the command that corrects it.

Invariant: nothing here reads a clock or does I/O; `kubeocean.commands` reads the clusters.
"""
