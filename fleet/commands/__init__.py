"""The commands of `fleet` for people.

Invariant: nothing is written before it was shown and confirmed, and each failure names the remedy and on which side it is.
"""
