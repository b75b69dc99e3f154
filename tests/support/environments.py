"""Forty pods that use every way to get variables, arguments and files, and print what they see of them.

Invariant: pure data; nothing in a pod depends on the node that it is for.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from tests.support.dumps import ACCOUNT, script

Body = dict[str, Any]


def _encoded(**texts: str) -> dict[str, str]:
    return {key.replace("__", "."): base64.b64encode(text.encode()).decode() for key, text in texts.items()}


SERVICE_PORTS = [{"name": "http-alt", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]

OBJECTS: Sequence[tuple[str, Body]] = (
    (
        "ConfigMap",
        {
            "metadata": {"name": "base"},
            "data": {"A": "from-map", "B": "map-b", "with.dot": "d", "REF": "$(A)"},
            "binaryData": {"BIN": "/w=="},
        },
    ),
    ("ConfigMap", {"metadata": {"name": "second"}, "data": {"B": "second-b", "LINES": "one\ntwo\n", "SPACE": "  x  "}}),
    ("ConfigMap", {"metadata": {"name": "empty"}}),
    ("Secret", {"metadata": {"name": "hidden"}, "data": _encoded(B="secret-b", PASSWORD="pa$$word$(A)", tls__key="k")}),
    ("Service", {"metadata": {"name": "my-web"}, "spec": {"ports": SERVICE_PORTS}}),
    ("Service", {"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}),
)
"""What the pods refer to, by kind; `nowhere` is missing."""


@frozen
class Case:
    """One pod: the parts of its main container, and of its spec."""

    name: str
    container: Body = field(factory=dict)
    spec: Body = field(factory=dict)
    metadata: Body = field(factory=dict)
    arguments: Sequence[str] = ()


def body(case: Case, *, namespace: str, node: str, image: str, name: str = "") -> Body:
    """The pod, which prints what it sees and ends."""
    paths = [*(mount["mountPath"] for mount in case.container.get("volumeMounts") or ()), ACCOUNT]
    main = {"name": "main", "image": image, "command": ["sh", "-c", script(paths)], **case.container}
    if case.arguments:
        main["args"] = list(case.arguments)
    metadata = {"name": name or case.name, "namespace": namespace, **case.metadata}
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "containers": [main],
        **case.spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


# --- the pods -----------------------------------------------------------------------------------------------------------------------------


def _env(*variables: Body, imported: Sequence[Body] = (), **more: Any) -> Body:
    return {"env": list(variables), "envFrom": list(imported), **more}


def _value(name: str, value: str) -> Body:
    return {"name": name, "value": value}


def _key(name: str, kind: str, source: str, key: str, *, optional: bool = False) -> Body:
    return {"name": name, "valueFrom": {f"{kind}KeyRef": {"name": source, "key": key, "optional": optional}}}


def _field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _resource(name: str, resource: str, divisor: str = "0", **more: str) -> Body:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor, **more}}}


def _from(kind: str, name: str, **more: Any) -> Body:
    optional = {"optional": True} if more.pop("optional", False) else {}
    return {f"{kind}Ref": {"name": name, **optional}, **more}


def _mounting(volume: Body, *mounts: Body, more: Sequence[Body] = (), security: Body | None = None, **container: Any) -> dict[str, Body]:
    """Container and spec with one volume `v`, mounted at /v unless told otherwise, and with `more` volumes, each mounted at its name."""
    wanted = [{"name": "v", "mountPath": "/v", **mount} for mount in mounts or ({},)]
    wanted += [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in more]
    spec: Body = {"volumes": [{"name": "v", **volume}, *more]}
    if security is not None:
        spec["securityContext"] = security
    return {"container": {"volumeMounts": wanted, **container}, "spec": spec}


_MARKS: Body = {"labels": {"app": "web", "example.com/tier": "x"}, "annotations": {"example.com/note": 'say "hi"\n\tthere', "plain": "p"}}
_LIMITED: Body = {"limits": {"cpu": "1500m", "memory": "100Mi"}, "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi"}}
_MAP, _SECRET = {"configMap": {"name": "base"}}, {"secret": {"secretName": "hidden"}}
_TOKEN_SOURCE = {"path": "token", "expirationSeconds": 3600}
_LABELS = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
_NOTES = {"path": "deep/notes", "fieldRef": {"fieldPath": "metadata.annotations"}, "mode": 0o400}
_CPU = {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu", "divisor": "1m"}}
_USER, _GROUP = {"runAsUser": 4321}, {"fsGroup": 5432}
_HIDDEN = {"name": "hidden", "secret": {"secretName": "hidden", "items": [{"key": "B", "path": "b", "mode": 0o400}]}}
HOST_FILE = "/etc/group"
"""What is mounted of the host."""

CASES: Sequence[Case] = (
    Case("plain"),
    Case("no-links", spec={"enableServiceLinks": False}),
    Case("from-map", _env(imported=[_from("configMap", "base")])),
    Case("from-two", _env(imported=[_from("configMap", "base"), _from("configMap", "second")])),
    Case("from-two-turned", _env(imported=[_from("configMap", "second"), _from("configMap", "base")])),
    Case("from-secret", _env(imported=[_from("configMap", "base"), _from("secret", "hidden")])),
    Case("prefixed", _env(imported=[_from("configMap", "base", prefix="P_"), _from("secret", "hidden", prefix="S_")])),
    Case("optional-sources", _env(imported=[_from("configMap", "nowhere", optional=True), _from("configMap", "empty")])),
    Case("env-over-from", _env(_value("B", "own"), imported=[_from("configMap", "second")])),
    Case("references", _env(_value("X", "1"), _value("Y", "$(X)2"), _value("Z", "$(Y)$(A)"), imported=[_from("configMap", "base")])),
    Case("forward", _env(_value("X", "$(Y)"), _value("Y", "$(X)"), _value("X", "$(Y)!"))),
    Case("escapes", _env(_value("X", "1"), _value("E", "$$(X) $$$(X) $( $() $x $"), _value("F", "$(E)"))),
    Case("service-references", _env(_value("URL", "$(MY_WEB_PORT)"), _value("HEADLESS", "$(HEADLESS_SERVICE_HOST)"))),
    Case("over-services", _env(_value("MY_WEB_PORT", "mine"), _value("KUBERNETES_SERVICE_HOST", ""))),
    Case("empty-values", _env(_value("EMPTY", ""), {"name": "BARE"}, _value("AFTER", "<$(EMPTY)>"))),
    Case("keys", _env(_key("X", "configMap", "base", "with.dot"), _key("Y", "secret", "hidden", "PASSWORD"), _value("Z", "$(Y)"))),
    Case(
        "optional-keys",
        _env(
            _key("X", "configMap", "base", "no", optional=True),
            _key("Y", "secret", "nowhere", "k", optional=True),
            _key("B", "configMap", "second", "no", optional=True),
            imported=[_from("configMap", "second")],
        ),
    ),
    Case("many-lines", _env(_key("X", "configMap", "second", "LINES"), _key("Y", "configMap", "second", "SPACE"))),
    Case("fields", _env(*(_field(path.split(".")[1].upper(), path) for path in ("metadata.name", "metadata.namespace", "metadata.uid")))),
    Case(
        "marks",
        _env(
            _field("L", "metadata.labels['app']"),
            _field("T", "metadata.labels['example.com/tier']"),
            _field("N", "metadata.annotations['example.com/note']"),
            _field("NONE", "metadata.annotations['none']"),
        ),
        metadata=_MARKS,
    ),
    Case("places", _env(_field("NODE", "spec.nodeName"), _field("ACCOUNT", "spec.serviceAccountName"))),
    Case(
        "addresses",
        _env(_field("A", "status.podIP"), _field("B", "status.podIPs"), _field("C", "status.hostIP"), _field("D", "status.hostIPs")),
    ),
    Case("host-network", _env(_field("A", "status.podIP"), _field("B", "status.hostIP")), {"hostNetwork": True}),
    Case(
        "resources",
        _env(
            _resource("LC", "limits.cpu"),
            _resource("LCM", "limits.cpu", "1m"),
            _resource("LM", "limits.memory", "1M"),
            _resource("RC", "requests.cpu"),
            _resource("RM", "requests.memory", "1Mi"),
            _resource("RE", "requests.ephemeral-storage", "1Ki"),
            resources=_LIMITED,
        ),
    ),
    Case(
        "no-resources",
        _env(
            _resource("RC", "requests.cpu"),
            _resource("RM", "requests.memory"),
            _resource("H", "limits.hugepages-2Mi"),
            _resource("LC", "limits.cpu", "1m", containerName="main"),
            _resource("LM", "limits.memory", "1Ki"),
            _resource("LE", "limits.ephemeral-storage", "1Mi"),
        ),
    ),
    Case("arguments", _env(_value("X", "1 2")), arguments=["$(X)", "$$(X)", "$(NO)", "$(MY_WEB_SERVICE_PORT)", "a$(X)b"]),
    Case("map", **_mounting(_MAP)),
    Case("map-modes", **_mounting({"configMap": {"name": "base", "defaultMode": 0o400}})),
    Case(
        "map-items",
        **_mounting(
            {"configMap": {"name": "base", "items": [{"key": "BIN", "path": "d/e/bin", "mode": 0o755}, {"key": "A", "path": "a"}]}},
            security=_GROUP,
        ),
    ),
    Case(
        "map-optional",
        **_mounting(
            {"configMap": {"name": "nowhere", "optional": True}},
            more=[{"name": "host", "hostPath": {"path": HOST_FILE, "type": "File"}}],
        ),
    ),
    Case(
        "keys-optional",
        **_mounting(
            {"secret": {"secretName": "hidden", "optional": True, "items": [{"key": "B", "path": "b"}, {"key": "no", "path": "n"}]}}
        ),
    ),
    Case("secret", **_mounting(_SECRET)),
    Case("secret-modes", **_mounting({"secret": {"secretName": "hidden", "defaultMode": 0o400}}, security={**_USER, **_GROUP})),
    Case("down", **_mounting({"downwardAPI": {"items": [_LABELS, _NOTES, _CPU]}}, resources=_LIMITED), metadata=_MARKS),
    Case(
        "token",
        **_mounting(
            {"projected": {"defaultMode": 0o440, "sources": [{"serviceAccountToken": {**_TOKEN_SOURCE, "audience": "vault"}}]}},
            security=_USER,
        ),
    ),
    Case(
        "projected",
        **_mounting(
            {
                "projected": {
                    "sources": [
                        {"configMap": {"name": "base", "items": [{"key": "A", "path": "x/a"}]}},
                        {"secret": {"name": "hidden"}},
                        {"configMap": {"name": "second"}},
                        {"configMap": {"name": "nowhere", "optional": True}},
                        {"downwardAPI": {"items": [_LABELS, _NOTES]}},
                        {"serviceAccountToken": _TOKEN_SOURCE},
                    ]
                }
            }
        ),
        metadata=_MARKS,
    ),
    Case(
        "sub-path",
        **_mounting(
            {"configMap": {"name": "base", "items": [{"key": "A", "path": "A"}, {"key": "B", "path": "d/e/b", "mode": 0o600}]}},
            {"mountPath": "/one", "subPath": "A"},
            {"mountPath": "/two", "subPath": "d"},
            {},
            security=_GROUP,
        ),
    ),
    Case(
        "sub-path-expr",
        **_mounting(
            {"emptyDir": {}},
            {"subPathExpr": "$(WHO)/old/logs"},
            {"mountPath": "/whole"},
            {"mountPath": "/closed", "readOnly": True},
            more=[{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, _HIDDEN],
            security={**_USER, **_GROUP},
            env=[_field("WHO", "metadata.name")],
        ),
    ),
    Case(
        "names",
        spec={
            "hostname": "own-name",
            "subdomain": "sub",
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["seven", "seven.example"]}],
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": ["192.0.2.53"],
                "searches": ["corp.example"],
                "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
            },
        },
    ),
    Case("whole-name", spec={"hostname": "h", "subdomain": "sub", "setHostnameAsFQDN": True, "automountServiceAccountToken": False}),
)
