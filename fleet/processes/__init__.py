"""The processes of a fleet: each module composes one of them.

Invariant: every task has its place in the tree of its process, and a stop has the order of `vkubelet.process`.
"""
