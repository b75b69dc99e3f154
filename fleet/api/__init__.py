"""The APIs of a fleet as values: names and labels, resources, clusters.

Invariant: nothing in here does I/O or reads a clock, and parsing never fails.
"""
