"""Content of `/configz`: our settings by the names of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1).

Invariant: only fields that mean here what they mean for a kubelet.
"""

from __future__ import annotations

from vkubelet.api.shapes import Json
from vkubelet.server.auth import ALLOW_HELD, DENY_HELD, TOKEN_HELD
from vkubelet.server.settings import ServerSettings


def kubelet_configuration(settings: ServerSettings) -> Json:
    """Returns the configuration with the port of the settings, 0 where there is none."""
    debug = settings.debug
    reviews = {"cacheAuthorizedTTL": duration(ALLOW_HELD), "cacheUnauthorizedTTL": duration(DENY_HELD)}
    return {
        "enableServer": True,
        "registerNode": True,
        "address": settings.bind_address,
        "port": int(settings.main_port),
        "tlsCertFile": settings.certificate_file,
        "tlsPrivateKeyFile": settings.key_file,
        "serverTLSBootstrap": settings.certificate == "csr",
        "authentication": {
            "x509": {"clientCAFile": settings.client_ca_file},
            "webhook": {"enabled": settings.token_review, "cacheTTL": duration(TOKEN_HELD)},
            "anonymous": {"enabled": settings.anonymous},
        },
        "authorization": {"mode": "Webhook", "webhook": reviews},
        "streamingConnectionIdleTimeout": duration(settings.stream_idle_timeout),
        "enableDebuggingHandlers": debug.handlers,
        "enableProfilingHandler": debug.profiling,
        "enableDebugFlagsHandler": debug.flags,
        "enableSystemLogHandler": debug.node_logs,
        "enableSystemLogQuery": False,
        "featureGates": {"ComponentFlagz": debug.zpages, "ComponentStatusz": debug.zpages},
    }


def duration(seconds: float) -> str:
    """Formats seconds as Go formats a time.Duration; with milliseconds at most."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    tail = f"{rest / 1000:g}s"
    return f"{hours}h{minutes}m{tail}" if hours else f"{minutes}m{tail}" if minutes else tail
