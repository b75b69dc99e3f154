"""Kubeocean: the nodes of worker clusters, leased by policy, as virtual nodes of a computing cluster.

Invariant: it uses only public parts of vkubelet; nothing in vkubelet depends on it.
"""
