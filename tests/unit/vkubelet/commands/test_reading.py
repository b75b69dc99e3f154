"""A reader without a right gets a sentence that names it."""

from __future__ import annotations

from vkubelet.api.objects import CSRS, PODS, SECRETS
from vkubelet.commands.clusters import Choice
from vkubelet.commands.reading import missing_right

WORKER = Choice("worker cluster", "--worker-context", context="away")


def test_a_missing_right_is_named_with_the_command_that_grants_it() -> None:
    assert missing_right(WORKER, "list", PODS) == (
        "you may not list pods in the worker cluster (context away); ask its owner to bind you a role with that right: "
        "kubectl create clusterrole reader --verb=list --resource=pods"
    )


def test_custom_resources_and_namespaces_are_written_as_kubectl_reads_them() -> None:
    assert "--resource=certificatesigningrequests.certificates.k8s.io" in missing_right(WORKER, "list", CSRS)
    one = missing_right(WORKER, "get", SECRETS, namespace="kubeocean-system")
    assert "get secrets in namespace kubeocean-system" in one and "create role reader -n kubeocean-system --verb=get" in one
