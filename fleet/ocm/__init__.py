"""The hub side of the API of Open Cluster Management.

Invariant: no object of the API of KubeFleet is read or written here.
"""
