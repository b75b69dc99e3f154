"""The Kubernetes API as values: objects, quantities, selectors, conditions, names.

Invariant: nothing in here does I/O or reads a clock.
"""
