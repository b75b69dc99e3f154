"""The kubelet server: the HTTPS face of every virtual node, called by the API server, by metrics scrapers, and by nobody else.

Invariant: no request is answered without TLS, and none but by a caller who proved who it is and may do what it asks.
"""

from vkubelet.server.kubelet import KubeletServer, ServerParts
from vkubelet.server.listeners import Endpoint
from vkubelet.server.settings import ServerSettings

__all__ = ["Endpoint", "KubeletServer", "ServerParts", "ServerSettings"]
