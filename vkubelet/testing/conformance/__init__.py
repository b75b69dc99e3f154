"""The conformance suite for providers: the call rules of the contract, tested in the real runtime against a real API server.

Invariant: a rule states by its name and sentence what a provider has to do; it is skipped only for a capability that the provider lacks.

    python -m vkubelet.testing.conformance --provider ./mine.py
"""

from vkubelet.testing.conformance.judge import Kubectl
from vkubelet.testing.conformance.rules import Outcome, Report, Result, Rule, table
from vkubelet.testing.conformance.stand import Options, Subject, examination_settings
from vkubelet.testing.conformance.suite import RULES, examine

__all__ = ["RULES", "Kubectl", "Options", "Outcome", "Report", "Result", "Rule", "Subject", "examination_settings", "examine", "table"]
