"""Copies in the worker of the objects that pods refer to: ConfigMaps, Secrets, service account tokens and volumes.

Invariant: an object without the owner mark of this binding is neither changed nor deleted.
"""
