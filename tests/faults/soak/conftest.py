"""The fixture of other folders that the soak needs."""

from tests.integration.kubeocean.conftest import scene

__all__ = ["scene"]
