"""Pods as processes of the host: a node for edge and HPC hosts that have no container engine.

Invariant: vkubelet may end in any way; the processes go on, nothing they log is lost, and how they end is known.

Each container has a keeper (`keeper/`), a small program that is its parent. `pods.py` finds and watches keepers, `attempts.py` reads what
they write, `keepers.py` starts them and speaks with them, `starting.py` says what they are to start, with `identity.py` for the user,
`volumes.py` for files and `cgroups.py` for limits; `logs.py`, `usage.py`, `machine.py` and `journal.py` tell what goes on; `provider.py`
puts it together.

What is not isolated: the network (a pod has the address of its node, and ports conflict), the processes of the host, which a container
sees, and its programs and files, but for the pod's own mounts.
"""

from vkubelet_providers.process.provider import Process

__all__ = ["Process"]
