"""Pods in memory that follow a script: for tests, for demonstrations, and to stand in for worker nodes at scale.

Invariant: everything that happens to a pod follows from its annotations, from what clients send, and from the clock; nothing is random.

`script.py` says what the annotations of a pod mean; `pods.py` and `lives.py` are the pods and how they follow it; `shell.py`, with
`syntax.py`, `commands.py`, `reading.py`, `files.py` and `terminal.py`, is what `kubectl exec` finds in a container; `sockets.py` is what
`kubectl port-forward` finds; `usage.py` says what the pods use; `provider.py` puts it together.
"""

from vkubelet_providers.mock.pods import MockPod, Stage, address_of
from vkubelet_providers.mock.provider import Mock
from vkubelet_providers.mock.script import PREFIX, Script

__all__ = ["PREFIX", "Mock", "MockPod", "Script", "Stage", "address_of"]
