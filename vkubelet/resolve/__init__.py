"""References of a pod, resolved: variables, commands, volumes, tokens, names and pull secrets, as a kubelet resolves them.

Invariant: objects are read by their names alone, with no more rights than a node has for its own pods.
"""
