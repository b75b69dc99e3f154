"""Mock provider: pods in memory that follow a script, for tests, for demonstrations, and as worker nodes at scale.

Invariant: everything that happens to a pod follows from its annotations, from the input of clients, and from the clock; nothing is random.

`script.py` parses the annotations of a pod; `pods.py` and `runner.py` are the pods and how they follow it; `streams.py` serves `kubectl
exec`, `attach` and `port-forward`, with `files.py` for `kubectl cp`; `usage.py` computes resource usage; `provider.py` combines them all.
"""

from vkubelet_providers.mock.pods import MockPod, Stage, address_of
from vkubelet_providers.mock.provider import Mock
from vkubelet_providers.mock.script import PREFIX, Script

__all__ = ["PREFIX", "Mock", "MockPod", "Script", "Stage", "address_of"]
