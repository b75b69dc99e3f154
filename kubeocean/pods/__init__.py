"""Virtual pods and their physical pods: creation, updates and deletion in the worker, status and events back in the hub.

Invariant: at most one physical pod exists for each uid of a virtual pod.
"""
