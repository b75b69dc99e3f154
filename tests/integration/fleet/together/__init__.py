"""Tests of hub and agent together. A package, so that fixtures can have its scope."""
