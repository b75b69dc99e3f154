"""Virtual nodes: their declaration, their registration, and their Leases and pings.

Invariant: nothing here knows pods or HTTP; what registration needs of them is passed in as callables.
"""
