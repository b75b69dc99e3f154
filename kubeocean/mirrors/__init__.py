"""Mirrors in the worker of objects of the hub that no pod names: the general reconciler, and the kinds of the setting `extra_kinds`.

Invariant: an object without the owner mark of this binding is neither changed nor deleted, and nothing is written to an original.
"""
