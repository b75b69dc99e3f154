"""Vocabulary of Kubeocean: names and labels, both custom resources, the fields of pods and time windows. Pure.

Invariant: nothing here sends a request, reads a clock or logs; every other package may import it, and it imports none of them.
"""
