"""Access reviews of an API server: what its authorizer allows a user."""

from __future__ import annotations

import json

from vkubelet.testing.cluster import ControlPlane


async def allows(plane: ControlPlane, user: str, **attributes: str) -> bool:
    """Whether a user has a right, named as in `resourceAttributes` of a SubjectAccessReview; a change of RBAC takes a moment."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    out = json.loads(await plane.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(out["status"]["allowed"])
