"""What is leased of a node, to whom and when: arithmetic only.

Invariant: nothing here reads a clock or talks to anybody; the same inputs give the same lease in every process.
"""
