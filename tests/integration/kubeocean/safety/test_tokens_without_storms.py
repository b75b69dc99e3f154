"""Rule `tokens-without-storms`: one Secret per pod with all its tokens, written only when they are due, deleted after the pod.

When they are due is arithmetic: tests/unit/kubeocean/copies/test_tokens.py.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.integration.kubeocean.conftest import STARTS_WITHIN, Scene
from tests.support.audit import Audit
from tests.support.program import eventually
from tests.support.stage import Stage, uid_of, virtual_uid

EXPIRY, LIFE = "kubeocean.io/token-expiry", "kubeocean.io/token-life"
TOKEN_SECRET = "kubeocean.io/service-account-token"
PODS = 8


async def token_secrets(stage: Stage, uid: str) -> list[dict[str, Any]]:
    """The token Secrets of one virtual pod."""
    found = await stage.there.list("secrets", stage.bound.mount)
    return [each for each in found if TOKEN_SECRET in each["metadata"].get("labels", {}) and virtual_uid(each) == uid]


def claims(encoded: str) -> dict[str, Any]:
    """What a token of a Secret says."""
    part = base64.b64decode(encoded).decode().split(".")[1]
    out: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return out


def expiry(secret: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(secret["metadata"]["annotations"][EXPIRY])


async def test_all_tokens_of_a_pod_are_in_one_secret_annotated_with_the_first_expiry(stage: Stage) -> None:
    sources = [
        {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}},
        {"serviceAccountToken": {"path": "other", "audience": "other", "expirationSeconds": 7200}},
    ]
    created = await stage.create("bearer", volumes=[{"name": "t", "projected": {"sources": sources}}])
    await stage.running("bearer")
    (secret,) = await token_secrets(stage, uid_of(created))
    tokens = [claims(each) for each in secret["data"].values()]
    assert sorted(each["aud"][0] for each in tokens) == ["https://kubernetes.default.svc", "other", "vault"]
    for each in tokens:
        assert each["kubernetes.io"]["pod"] == {"name": "bearer", "uid": uid_of(created)}
        assert each["sub"] == f"system:serviceaccount:{stage.namespace}:default"
    assert abs(expiry(secret).timestamp() - min(each["exp"] for each in tokens)) <= 1
    physical = await stage.physical("bearer")
    assert physical is not None and physical["spec"]["automountServiceAccountToken"] is False


async def test_restart_renews_no_token_that_is_not_due(common: Scene, stage: Stage) -> None:
    uids = [uid_of(await stage.create(f"p{number}")) for number in range(PODS)]
    for number in range(PODS):
        await stage.running(f"p{number}")
    before = {uid: await token_secrets(stage, uid) for uid in uids}
    home, there = Audit(stage.bound.hub, stage.bound.user), Audit(stage.bound.worker, stage.bound.user)
    assert common.program.terminate() == 0
    common.program.start()
    for number in range(PODS):
        await stage.home.patch("pods", f"p{number}", {"metadata": {"labels": {"seen": "again"}}}, namespace=stage.namespace)
    for number in range(PODS):
        # The new process has taken up this pod.
        await stage.until_physical(f"p{number}", _is_seen_again, "labelled", seconds=STARTS_WITHIN)
    # What the tests before have left may still be taken away.
    own = {secret["metadata"]["name"] for secrets in before.values() for secret in secrets}
    assert [str(call) for call in home.writes() if call.what == "serviceaccounts/token" and call.namespace == stage.namespace] == []
    assert [str(call) for call in there.writes() if call.what == "secrets" and call.name in own] == []
    assert {uid: await token_secrets(stage, uid) for uid in uids} == before


def _is_seen_again(body: dict[str, Any]) -> bool:
    return bool(body["metadata"]["labels"].get("seen") == "again")


async def _note(stage: Stage, secret: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """Annotate a token Secret by hand."""
    change = {"metadata": {"annotations": annotations}}
    return await stage.there.patch("secrets", secret["metadata"]["name"], change, namespace=stage.bound.mount)


async def test_annotations_decide_when_tokens_are_renewed(stage: Stage) -> None:
    long = {"serviceAccountToken": {"path": "t", "audience": "x", "expirationSeconds": 7200}}
    volumes = [{"name": "t", "projected": {"sources": [long]}}]
    names = ("limited", "due", "fresh")
    uids = [uid_of(await stage.create(name, automountServiceAccountToken=False, volumes=volumes)) for name in names]
    for name in names:
        await stage.running(name)
    limited, due, fresh = [(await token_secrets(stage, uid))[0] for uid in uids]
    there = Audit(stage.bound.worker, stage.bound.user)
    now = datetime.now(UTC)
    # As if the API server gave ten minutes where two hours were asked for: too few for the question, whole for the answer.
    limited = await _note(stage, limited, **{EXPIRY: _stamp(now, 600), LIFE: "600"})
    await _note(stage, due, **{EXPIRY: _stamp(now, 600)})

    async def renewed() -> dict[str, Any] | None:
        (found,) = await token_secrets(stage, uids[1])
        return found if expiry(found) >= expiry(due) else None

    after = await eventually(renewed, "the token is renewed")
    assert uid_of(after) == uid_of(due) and after["data"].keys() == due["data"].keys() and after["data"] != due["data"]

    tokens = {each["metadata"]["name"] for each in (limited, due, fresh)}

    def writes() -> list[str]:
        """What the tests before have left may still be taken away."""
        return [str(call) for call in there.writes() if call.what == "secrets" and call.name in tokens]

    await eventually(writes, "the audit log has it")
    assert writes() == [f"update secrets {stage.bound.mount}/{due['metadata']['name']} 200"]
    for uid, before in ((uids[0], limited), (uids[2], fresh)):
        (found,) = await token_secrets(stage, uid)
        assert found["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def _stamp(now: datetime, seconds: float) -> str:
    return (now + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_token_secret_that_was_deleted_is_made_again(stage: Stage) -> None:
    uid = uid_of(await stage.create("bearer"))
    await stage.running("bearer")
    (secret,) = await token_secrets(stage, uid)
    await stage.there.delete("secrets", secret["metadata"]["name"], stage.bound.mount)

    async def back() -> bool:
        return [each["metadata"]["name"] for each in await token_secrets(stage, uid)] == [secret["metadata"]["name"]]

    await eventually(back, "the Secret is back")


async def test_token_outlives_the_containers_and_goes_after_them(stage: Stage) -> None:
    uid = uid_of(await stage.create("bearer", script={"stop-delay": "2"}))
    await stage.running("bearer")
    assert len(await token_secrets(stage, uid)) == 1
    await stage.home.delete("pods", "bearer", stage.namespace, grace=30)
    await stage.until_physical("bearer", lambda found: found["metadata"].get("deletionTimestamp"), "terminating")

    async def ended() -> bool:
        secrets = await token_secrets(stage, uid)
        alive = await stage.physical("bearer") is not None
        assert secrets or not alive, "the token went before its containers"
        return not alive

    await eventually(ended, "the physical pod is gone")

    async def gone() -> bool:
        return not await token_secrets(stage, uid)

    await eventually(gone, "the token Secret is gone")
