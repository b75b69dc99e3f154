"""For authors of providers and of this project: a clock to move by hand, a recording host, real clusters, the conformance suite.

Invariant: nothing outside of this package imports it.
"""
