"""Mirrors of the hub's NetworkPolicies in the worker namespaces of tenants (`namespaceMapping: PerNamespace`).

Invariant: an object without the owner mark of this binding is neither changed nor deleted, and nothing is written in the hub.
"""
