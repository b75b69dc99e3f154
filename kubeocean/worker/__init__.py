"""The connection to one worker cluster: client, caches, reachability, and the streams and statistics of its kubelets.

Invariant: it reads and proxies; what is created in the worker for nodes, pods and volumes is decided in other packages.
"""
