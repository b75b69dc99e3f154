"""The connection to one worker cluster: client, caches, reachability, and the streams and statistics of its kubelets.

Invariant: it reads and proxies; which nodes, pods and volumes are created in the worker is decided in other packages.
"""
