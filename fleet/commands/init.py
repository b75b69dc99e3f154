"""`fleet init`: prepares a hub for its process, and prints the line by which a worker joins it.

Invariant: a second run changes nothing but the token; the token is printed and stored nowhere else.
"""

import hashlib
import shlex
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from fleet.api import keys
from fleet.api.resources import CLUSTERCLAIMS, DEFINED, admission_policies, definition
from fleet.commands.objects import INSTALLER, apply_all, confirm
from fleet.core.rights import hub_objects, hub_rules
from vkubelet.api.codec import decode_yaml_documents
from vkubelet.api.objects import SERVICEACCOUNTS, Json
from vkubelet.api.rbac import RBAC, Rule, namespace_body
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.clock import Clock, SystemClock
from vkubelet.commands import clusters
from vkubelet.commands.manifests import commented
from vkubelet.commands.terminal import Terminal

PUBLIC: Final = "kube-public"
CA: Final = "ca.crt"
READ_CA: Final = Rule(
    "configmaps", "get", names=keys.HUB, namespace=PUBLIC, why="Shows the CA of the hub to workers before they send their token."
)


def ca_hash(authority: bytes) -> str:
    """Returns the hash of CA certificates as PEM, by which `fleet join` recognizes them."""
    return f"sha256:{hashlib.sha256(authority.strip()).hexdigest()}"


@frozen(kw_only=True)
class Init:
    """One run of the command; `roles` are the objects that all clusters share, with their `rules`."""

    choice: clusters.Choice
    roles: Sequence[Json]
    rules: Sequence[Rule]
    only_print: bool
    server: str
    """URL by which workers reach the hub; empty: that of the kubeconfig."""
    token_seconds: int
    yes: bool
    terminal: Terminal
    clock: Clock = field(factory=SystemClock)

    async def run(self) -> Json:
        """Prepares the hub; returns how a worker joins it. Raises VKubeletError."""
        authority = _authority(await clusters.connection_of(self.choice))
        process = [namespace_body(keys.NAMESPACE), *hub_objects()]
        policies = decode_yaml_documents(admission_policies())
        bodies = [*process, *self.roles, *(_published(authority) if authority else []), *policies]
        text = commented(bodies, [*hub_rules(), *self.rules, READ_CA])
        if self.only_print:
            definitions = "\n---\n".join(definition(each).strip() for each in DEFINED if each != CLUSTERCLAIMS)
            self.terminal.write_line(f"{definitions}\n---\n{text.rstrip()}")
            return {}
        async with clusters.opened(self.choice) as hub:
            self.terminal.write_line(f"On the {self.choice.title}, {hub.connection.url}, these objects are created:\n\n{text}")
            confirm(self.terminal, "Apply this?", yes=self.yes)
            await self._define(hub)
            await apply_all(hub, bodies, choice=self.choice, terminal=self.terminal)
            token = await self._token(hub)
            return self._show(self.server or hub.connection.url, token, authority)

    async def _define(self, hub: Client) -> None:
        for each in DEFINED:
            if each == CLUSTERCLAIMS:
                continue
            text, source = definition(each), "the output of fleet init --print"
            with clusters.explained(self.choice):
                done = await clusters.ensure_definition(hub, each, text=text, installer=INSTALLER, source=source, clock=self.clock)
            self.terminal.write_line(f"{self.choice.what}: CustomResourceDefinition of {each.kind}: {done}")

    async def _token(self, hub: Client) -> str:
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": self.token_seconds}}
        with clusters.explained(self.choice):
            made = await hub.create(
                SERVICEACCOUNTS, request, namespace=keys.BOOTSTRAP_NAMESPACE, subresource="token", parent=keys.BOOTSTRAP_ACCOUNT
            )
        return str(made.body["status"]["token"])

    def _show(self, server: str, token: str, authority: bytes) -> Json:
        words = ["fleet", "join", "--hub", server, "--token", token, *(["--ca-hash", ca_hash(authority)] if authority else [])]
        hours = self.token_seconds / 3600
        self.terminal.write_line(f"\nIn each worker run this within {hours:g} h, with a name of your choice:\n")
        self.terminal.write_line(f"  {shlex.join(words)} --name NAME\n")
        self.terminal.write_line("Then accept it on the hub: fleet accept NAME")
        return {"server": server, "token": token, "caHash": ca_hash(authority) if authority else ""}


def _authority(connection: Connection) -> bytes:
    """Returns the CA of the hub; nothing when the roots of the system are trusted."""
    source = connection.tls.source if connection.tls is not None else None
    return source.authority.read() if source is not None and source.authority is not None else b""


def _published(authority: bytes) -> list[Json]:
    """Returns the ConfigMap with the CA, and the right of every client to read it."""
    metadata = {"name": keys.HUB, "namespace": PUBLIC}
    groups = [{"apiGroup": RBAC, "kind": "Group", "name": f"system:{name}"} for name in ("unauthenticated", "authenticated")]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [READ_CA.body]}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": keys.HUB}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": reference, "subjects": groups}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CA: authority.decode("ascii", "replace")}},
        role,
        binding,
    ]
