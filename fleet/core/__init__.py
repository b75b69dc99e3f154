"""Decisions about the clusters of a fleet.

Invariant: everything in here is a pure function of its arguments; time is one of them.
"""
