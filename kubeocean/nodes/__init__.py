"""Virtual nodes: created from leased physical nodes, kept current, reclaimed and withdrawn.

Invariant: nothing here creates or changes a physical pod or a copy of a hub object.
"""
