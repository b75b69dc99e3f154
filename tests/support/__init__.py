"""What integration and e2e tests share: our programs as processes, and witnesses that are not ours.

Invariant: nothing here imports the code under test; it is driven by its command line and read back by other clients.
"""
