"""Records of the clusters on the hub: read, kept as desired, mirrored and published.

Invariant: nothing here decides whether a cluster may join.
"""
