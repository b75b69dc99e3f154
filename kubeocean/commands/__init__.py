"""Commands of `kubeocean` for users at a terminal, beside those that run it.

Invariant: a command fails with a sentence that names the problem and the remedy, never with a traceback, and never shows a secret.
"""
