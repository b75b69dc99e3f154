"""The pods of the virtual nodes: which are ours, what is done with them, and what is published of them.

Invariant: everything here is done by uid; a name that is used again never mixes two pods up.
"""

from vkubelet.pods.pods import PodParts, Pods

__all__ = ["PodParts", "Pods"]
