"""ResourceLeasingPolicies of the worker: which ones apply, which hub serves them, and what their status reports.

Invariant: only the hub that holds the first claim of a policy writes its status.
"""
