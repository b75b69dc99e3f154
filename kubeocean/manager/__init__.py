"""The controller that deploys a process for each ClusterBinding.

Invariant: objects created for a binding have it as their owner, and no other object is ever changed or deleted.
"""
