"""The kubelet server: the HTTPS endpoint of every virtual node, called by the API server and by metrics scrapers.

Invariant: no request is served without TLS, and only for an authenticated and authorized caller.
"""

from vkubelet.server.kubelet import KubeletServer
from vkubelet.server.listeners import Endpoint
from vkubelet.server.settings import ServerSettings

__all__ = ["Endpoint", "KubeletServer", "ServerSettings"]
