"""The pods of the virtual nodes: which pods belong to this process, what it does with them, and the status it publishes for them.

Invariant: everything here works by UID; a pod name that is used again never mixes up two pods.
"""

from vkubelet.pods.controllers import Pods

__all__ = ["Pods"]
