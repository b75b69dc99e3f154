"""What people ask of `kubeocean` at a terminal, beside running it.

Invariant: a command ends with a sentence that names what is wrong and what mends it, never with a traceback, and never shows a secret.
"""
