"""Foretells and explains what the process of a binding decides, by the functions with which it decides.

Invariant: nothing here reads a clock or does I/O, and no rule of leasing or translation is stated a second time.
"""
