"""Computes what is leased of a node, for which binding and when: arithmetic only.

Invariant: nothing here reads a clock or does I/O; the same inputs give the same lease in every process.
"""
