"""Permissions in both clusters: RBAC rules with their reasons, and admission policies that limit what RBAC grants (pure).

Invariant: charts, samples and `kubeocean bind` grant exactly what is listed here.
"""
