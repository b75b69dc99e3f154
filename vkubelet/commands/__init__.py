"""Parts of command lines: output and questions, the choice of a cluster, manifests as text.

Invariant: nothing in here knows what a command is for.
"""
