"""The hub side of the API of KubeFleet.

Invariant: no object of the API of Open Cluster Management is written here.
"""
