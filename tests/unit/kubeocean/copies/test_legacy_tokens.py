"""Token Secrets of Kubeocean (Go), told by their names."""

from __future__ import annotations

from kubeocean.copies.legacy_tokens import is_legacy, source_of
from kubeocean.model import keys
from kubeocean.model.references import TokenSource
from tests.unit.kubeocean.builders import pod, unknown
from vkubelet.api.objects import Json, Unknown

WHO = {keys.VIRTUAL_POD_NAMESPACE: "default", keys.VIRTUAL_POD_NAME: "web", keys.VIRTUAL_POD_UID: "uid-1"}


def projected(name: str, *tokens: Json) -> Json:
    return {"name": name, "projected": {"sources": [{"serviceAccountToken": {"path": "token", **token}} for token in tokens]}}


def secret(name: str) -> Unknown:
    return unknown({"metadata": {"name": name, "labels": {keys.TOKEN_SECRET: "true"}, "annotations": WHO}})


def go_name(volume: str) -> str:
    return keys.physical_name("default", f"web-{volume}-uid-1")


def test_a_secret_under_its_name_is_legacy_and_one_under_ours_is_not() -> None:
    assert is_legacy(secret(go_name("kube-api-access-x")))
    assert not is_legacy(secret(keys.token_secret_name("default", "web", "uid-1")))
    assert not is_legacy(unknown({"metadata": {"name": "x", "annotations": WHO}}))


def test_the_name_tells_which_volume_it_is_mounted_by() -> None:
    one = pod({"volumes": [projected("a", {}), projected("b", {"audience": "x", "expirationSeconds": 600})]})
    assert source_of(go_name("a"), one) == TokenSource("token", "", 3600)
    assert source_of(go_name("b"), one) == TokenSource("token", "x", 600)
    assert source_of(go_name("c"), one) is None


def test_of_two_tokens_in_one_volume_the_first_is_in_it() -> None:
    one = pod({"volumes": [projected("a", {"audience": "first"}, {"audience": "second"})]})
    assert source_of(go_name("a"), one) == TokenSource("token", "first", 3600)
