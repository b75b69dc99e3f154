"""Process provider: pods as processes of the host, a node for edge and HPC hosts without a container engine.

Invariant: however vkubelet exits, the processes continue, none of their log lines are dropped, and their exit status is known.

Each container has a keeper (`keeper/`), a small program that is its parent. `local_pods.py` finds and watches keepers, `attempts.py`
reads what they write, `keepers.py` starts and contacts them, `starting.py` prepares their orders, with `identity.py` for the user,
`volumes.py` for files and `cgroups.py` for limits; `logs.py`, `usage.py` and `machine.py` provide logs and metrics; `provider.py` combines
all of them.

What is not isolated: the network (a pod has the address of its node, and ports conflict), the processes of the host, which a container
sees, and its programs and files, except for the pod's own mounts.
"""

from vkubelet_providers.process.provider import Process

__all__ = ["Process"]
