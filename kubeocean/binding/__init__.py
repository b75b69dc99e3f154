"""The ClusterBinding that this process serves: its cached spec, and the phase and conditions of its status.

Invariant: this process writes the status of no other binding.
"""
