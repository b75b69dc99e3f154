"""The process of one ClusterBinding: connects to its worker, runs the reconcilers, and removes what a deleted binding leaves.

Invariant: only this package starts and stops the reconcilers of nodes, copies and pods.
"""
