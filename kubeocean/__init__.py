"""Kubeocean: the nodes of worker clusters, leased by policy, as virtual nodes of a computing cluster.

Invariant: it stands on vkubelet's public parts; nothing in vkubelet knows of it.
"""
