"""The controller toolkit: informers, queues, controllers, leader election, events.

Invariant: reconcilers are called with keys and read the state themselves; nothing here decides anything about nodes or pods.
"""
