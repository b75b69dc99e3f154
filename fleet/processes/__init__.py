"""The processes of a fleet, put together from their controllers.

Invariant: a process contains no decision about a cluster.
"""
