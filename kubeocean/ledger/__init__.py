"""The ledger of one binding: the resource-seconds that its pods reserved in the worker, and where they are stored.

Invariant: what a pod reserved is computed from its own times in the API; a restart, another leader and a failed write count nothing twice.
"""
