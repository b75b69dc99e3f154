"""Mock provider: pods in memory that follow a script, for tests, for demonstrations, and as worker nodes at scale.

Invariant: everything that happens to a pod follows from its annotations, from the input of clients, and from the clock; nothing is random.

`script.py` parses the annotations of a pod; `pods.py` and `lives.py` are the pods and how they follow it; `shell.py`, with `syntax.py`,
`commands.py`, `reading.py`, `files.py` and `terminal.py`, is the shell for `kubectl exec` in a container; `sockets.py` responds to `kubectl
port-forward`; `usage.py` computes resource usage; `provider.py` combines all of them.
"""

from vkubelet_providers.mock.pods import MockPod, Stage, address_of
from vkubelet_providers.mock.provider import Mock
from vkubelet_providers.mock.script import PREFIX, Script

__all__ = ["PREFIX", "Mock", "MockPod", "Script", "Stage", "address_of"]
