"""Requests of clusters for client certificates: what each asks for, and which of them is the renewal of an accepted cluster (pure).

Invariant: only a request that repeats the identity of its requester is approved; every other one is left to a person, and never denied.
"""

import base64
from collections.abc import Collection, Sequence
from typing import Final, Self

from attrs import field, frozen
from cryptography import x509
from cryptography.x509.oid import NameOID

from fleet.api import keys
from fleet.api.resources import REGISTER_GROUP
from vkubelet.api.fields import Fields
from vkubelet.api.objects import Json, Unknown

REASON: Final = "AutoApprovedByHubCSRApprovingController"
LIMIT: Final = 10
"""Number of requests that one cluster may have."""


@frozen(kw_only=True)
class ClientRequest:
    """A CertificateSigningRequest; `flaw` is why the request inside cannot be that of a cluster, "" when it can."""

    name: str
    cluster: str = ""
    requester: str = ""
    groups: Sequence[str] = ()
    signer: str = ""
    usages: Sequence[str] = ()
    common_name: str = ""
    organizations: Sequence[str] = ()
    decided: bool = False
    """Whether it is approved, denied or failed."""
    flaw: str = field(default="")

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        """Reads a request; nothing that it contains makes that fail."""
        body = obj.body
        spec = Fields(body.get("spec"), "spec", [])
        common_name, organizations, flaw = _subject(spec.text("request"))
        return cls(
            name=obj.metadata.name,
            cluster=obj.metadata.labels.get(keys.CLUSTER_NAME, ""),
            requester=spec.text("username"),
            groups=spec.texts("groups"),
            signer=spec.text("signerName"),
            usages=spec.texts("usages"),
            common_name=common_name,
            organizations=organizations,
            decided=bool(Fields(body.get("status"), "status", []).items("conditions")),
            flaw=flaw,
        )

    @property
    def review(self) -> Json:
        """The SubjectAccessReview that must allow the renewal."""
        renew = {"group": REGISTER_GROUP, "resource": "managedclusters", "subresource": "clientcertificates", "verb": "renew"}
        return {"spec": {"user": self.requester, "groups": list(self.groups), "resourceAttributes": renew}}


def content_flaw(request: ClientRequest) -> str:
    """Returns why the certificate cannot be that of an agent of the cluster in the label, as a sentence; "" when it can."""
    group = keys.cluster_group(request.cluster)
    allowed = ({group}, {group, keys.MANAGED_CLUSTERS_GROUP})
    checks = (
        (not request.flaw, request.flaw),
        (request.signer == keys.CLIENT_SIGNER, f"spec.signerName is not {keys.CLIENT_SIGNER}"),
        (sorted(request.usages) == sorted(keys.CLIENT_USAGES), f"spec.usages are not {', '.join(keys.CLIENT_USAGES)}"),
        (bool(keys.agent_of(request.common_name, request.cluster)), "the common name is not that of an agent of the cluster"),
        (_is_set(request.organizations) and set(request.organizations) in allowed, "the organizations are not those of the cluster"),
    )
    return next((sentence for holds, sentence in checks if not holds), "")


def obstacle(request: ClientRequest, *, accepted: Collection[str], others: int) -> str:
    """Returns why a request is not approved as a renewal, as a sentence; "" when `review` alone decides.

    `accepted` are the names of accepted clusters, `others` is the number of older requests of the same cluster.
    """
    flaw = content_flaw(request)
    checks = (
        (request.cluster in accepted, f"label {keys.CLUSTER_NAME} names no accepted cluster"),
        (others < LIMIT, f"the cluster has {others} other requests"),
        (not flaw, flaw),
        (request.requester == request.common_name, "the requester is not the user that the certificate would name"),
        (keys.cluster_group(request.cluster) in request.groups, "the requester is not in the group of the cluster"),
    )
    return next((sentence for holds, sentence in checks if not holds), "")


def first_obstacle(request: ClientRequest, *, others: int, trusted: Collection[str]) -> str:
    """Returns why a request is not approved as that of a `trusted` bootstrap user, as a sentence; "" when it is."""
    flaw = content_flaw(request)
    checks = (
        (request.requester in trusted, "the requester is not in the setting hub.auto_approve_users"),
        (others < LIMIT, f"the cluster has {others} other requests"),
        (not flaw, flaw),
    )
    return next((sentence for holds, sentence in checks if not holds), "")


def _is_set(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _subject(encoded: str) -> tuple[str, tuple[str, ...], str]:
    """Returns common name, organizations, and what else is requested, as a sentence."""
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(encoded, validate=True))
        asks_more = bool(list(request.extensions))
        valid = request.is_signature_valid
    except (ValueError, TypeError):
        return "", (), "spec.request contains no valid request"
    subject = request.subject
    names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = tuple(str(each.value) for each in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    flaw = ""
    if not valid:
        flaw = "the request is not signed by its key"
    elif asks_more:
        flaw = "the request asks for names beside its subject"
    elif len(names) != 1 or len(list(subject)) != 1 + len(groups):
        flaw = "the subject has other parts than one common name and organizations"
    return names[0] if len(names) == 1 else "", groups, flaw
