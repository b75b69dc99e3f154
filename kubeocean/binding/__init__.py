"""The ClusterBinding that this process serves: its cached spec, its status, and the table of its virtual nodes.

Invariant: this process writes the status of no other binding.
"""
