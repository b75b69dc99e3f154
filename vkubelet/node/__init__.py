"""Virtual nodes: what is declared, how it is registered, and what keeps it alive.

Invariant: nothing here knows of pods or of HTTP; what registration needs of them is handed in as callables.
"""
