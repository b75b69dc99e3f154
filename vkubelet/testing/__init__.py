"""For authors of providers and of this project: a manual clock, a recording host, real clusters, the conformance suite.

Invariant: nothing outside of this package imports it.
"""
