"""Tests of the agent with an independent hub. A package, so that fixtures can have its scope."""
