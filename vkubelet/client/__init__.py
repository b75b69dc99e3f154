"""Client of a Kubernetes API server: bytes on the wire, heads in memory.

Invariant: nothing is retried or listed again here except by the policy in `retry`; every failure is an error of `vkubelet.errors`.
"""
