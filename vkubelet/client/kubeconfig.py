"""Reads kubeconfig files: parses, merges, selects a context, and checks every field that counts.

Invariant: a message names the file and the field, never a value, because values here are secrets.

Source of the rules: https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import yaml
from attrs import field, frozen

from vkubelet.api.codec import decode_yaml
from vkubelet.api.objects import Json, JsonView
from vkubelet.client.credentials import Credentials, Fixed, Plugin, PluginCommand, TokenFile
from vkubelet.client.oidc import Oidc
from vkubelet.client.tls import Pem, TlsSource
from vkubelet.errors import SettingsError

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@frozen
class Section:
    """One mapping of a kubeconfig: its path, and the folder of its relative paths (None: it may not name files)."""

    where: str
    values: JsonView = field(repr=False)
    base: Path | None = None

    def wrong(self, key: str, sentence: str) -> SettingsError:
        return SettingsError(f"{self.where}.{key}" if key else self.where, sentence)

    def text(self, key: str) -> str:
        """Returns a text field, "" when absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "must be text")
        return value or ""

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return bool(value)

    def entries(self, key: str) -> list[Json]:
        """Returns the mappings of a list; empty when absent."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong(key, "must be a list of mappings")
        return value

    def sub(self, key: str) -> Section | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a mapping")
        return Section(f"{self.where}.{key}", value, self.base)

    def file(self, key: str) -> Path | None:
        name = self.text(key)
        if not name:
            return None
        if self.base is None:
            raise self.wrong(key, "must not name a file here; put the content inline")
        return self.base / Path(name).expanduser()

    def pem(self, key: str) -> Pem | None:
        """Returns `<key>-data` (base64) or the file `<key>`; the data take precedence, as in kubectl."""
        inline = self.text(f"{key}-data")
        if inline:
            where = f"{self.where}.{key}-data"
            try:
                return Pem(where, base64.b64decode(inline, validate=True))
            except (binascii.Error, ValueError) as error:
                raise SettingsError(where, "is not valid base64; encode the PEM data with base64") from error
        path = self.file(key)
        return Pem(f"{self.where}.{key}", path=path) if path else None


@frozen
class Access:
    """Checked content of a context; the cluster section is kept for the credential plugins that request it."""

    cluster: Section
    user: Section
    namespace: str

    @property
    def server(self) -> str:
        server = self.cluster.text("server").rstrip("/")
        try:
            parts = urlsplit(server)
            valid = _dialable(parts) and parts.username is None
        except ValueError:
            valid = False
        if not valid:
            raise self.cluster.wrong("server", "must be the URL of an API server, beginning with https://")
        return server

    @property
    def proxy(self) -> str:
        """URL of the proxy, "" when the kubeconfig names none."""
        proxy = self.cluster.text("proxy-url")
        try:
            valid = not proxy or _dialable(urlsplit(proxy))
        except ValueError:
            valid = False
        if not valid:
            raise self.cluster.wrong("proxy-url", "must begin with http:// or https:// and name a host; SOCKS is not supported")
        return proxy

    def tls(self) -> TlsSource:
        certificate, key = self.user.pem("client-certificate"), self.user.pem("client-key")
        if (certificate is None) != (key is None):
            raise self.user.wrong("", "client-certificate and client-key must be given together")
        authority = self.cluster.pem("certificate-authority")
        return TlsSource(authority, certificate, key, self.cluster.flag("insecure-skip-tls-verify"))

    def credentials(self) -> Credentials:
        """Returns credentials in kubectl's order: token, token file, user and password, plugin, OIDC; none with a client certificate
        alone."""
        user = self.user
        if path := user.file("tokenFile"):
            return TokenFile(path)
        if token := user.text("token").strip():
            if not token.isprintable() or " " in token:
                raise user.wrong("token", "must be one line without spaces")
            return Fixed(f"Bearer {token}")
        if name := user.text("username"):
            return Fixed.basic(name, user.text("password"))
        if command := user.sub("exec"):
            return Plugin(self._plugin(command))
        if provider := user.sub("auth-provider"):
            return self._oidc(provider)
        return Fixed()

    def _plugin(self, section: Section) -> PluginCommand:
        if section.base is None:
            raise section.wrong("", "must not run a program here; use a token or a client certificate")
        version, command = section.text("apiVersion"), section.text("command")
        if version not in _EXEC_VERSIONS:
            raise section.wrong("apiVersion", f"must be one of {', '.join(_EXEC_VERSIONS)}")
        if not command:
            raise section.wrong("command", "is missing")
        if section.text("interactiveMode") == "Always":
            raise section.wrong("interactiveMode", "must not be Always, there is no terminal; use a service account's token")
        args = section.values.get("args") or []
        if not isinstance(args, list):
            raise section.wrong("args", "must be a list")
        env = {str(entry.get("name")): str(entry.get("value", "")) for entry in section.entries("env")}
        return PluginCommand(
            api_version=version,
            command=str(section.base / command) if "/" in command else command,
            args=[str(arg) for arg in args],
            env=env,
            hint=section.text("installHint"),
            cluster=self._cluster_info() if section.flag("provideClusterInfo") else None,
        )

    def _cluster_info(self) -> Json:
        """Returns the `spec.cluster` of the ExecCredential that a plugin receives."""
        info: Json = {"server": self.server}
        for key in ("tls-server-name", "insecure-skip-tls-verify", "proxy-url"):
            if self.cluster.values.get(key):
                info[key] = self.cluster.values[key]
        if authority := self.cluster.pem("certificate-authority"):
            info["certificate-authority-data"] = base64.b64encode(authority.read()).decode()
        for extension in self.cluster.entries("extensions"):
            if extension.get("name") == "client.authentication.k8s.io/exec":
                info["config"] = extension.get("extension")
        return info

    def _oidc(self, provider: Section) -> Credentials:
        config = provider.sub("config")
        if provider.text("name") != "oidc" or config is None:
            raise provider.wrong("name", "is not supported; use `exec` with a credential plugin, or a token")
        return Oidc(
            issuer=config.text("idp-issuer-url"),
            client_id=config.text("client-id"),
            client_secret=config.text("client-secret"),
            id_token=config.text("id-token"),
            refresh_token=config.text("refresh-token"),
            authority=config.pem("idp-certificate-authority"),
        )


def _dialable(url: SplitResult) -> bool:
    """Checks whether a connection can be made to the URL; returns False or raises ValueError when it cannot."""
    host = url.hostname or ""
    host.encode("idna")
    return url.scheme in ("https", "http") and bool(host) and url.port != 0


@frozen
class Contexts:
    """Contexts of merged kubeconfig files: the URL of the API server by name, "" where it is not known, and the current one."""

    servers: Mapping[str, str]
    current: str = ""

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Contexts:
        """Reads the files. Raises SettingsError."""
        documents = _documents(paths)
        names = [str(entry.get("name", "")) for document in documents for entry in document.entries("contexts")]
        return cls({name: _server(documents, name) for name in names if name}, _current(documents))


def read_files(paths: Sequence[Path], context: str = "") -> Access:
    """Merges the files as kubectl does, the first to set a field wins, and selects a context. Raises SettingsError."""
    return pick(_documents(paths), context)


def _documents(paths: Sequence[Path]) -> list[Section]:
    documents = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SettingsError(f"kubeconfig {path}", f"cannot be read: {error.strerror}; name a file that this user may read") from error
        documents.append(parse(data, f"kubeconfig {path}", path.parent))
    return documents


def parse(data: bytes | JsonView, where: str, base: Path | None) -> Section:
    """Parses one document. Raises SettingsError."""
    if isinstance(data, bytes):
        try:
            value = decode_yaml(data)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            at = f" (line {mark.line + 1})" if mark else ""
            raise SettingsError(where, f"is not valid YAML{at}; write it again, for example with `kubectl config view --raw`") from error
    else:
        value = data
    if not isinstance(value, dict):
        raise SettingsError(where, "is not a kubeconfig: it must be a mapping with clusters, users and contexts")
    return Section(where, value, base)


def pick(documents: Sequence[Section], context: str = "") -> Access:
    """Selects the cluster and user of `context`, by default of the first current-context. Raises SettingsError."""
    name = context or _current(documents)
    where = ", ".join(document.where for document in documents)
    if not name:
        raise SettingsError(where, "has no current-context; name one, or run `kubectl config use-context`")
    chosen = _named(documents, "contexts", name, "context")
    if chosen is None:
        raise SettingsError(where, f"has no context {name!r}; list its contexts with `kubectl config get-contexts`")
    cluster = _named(documents, "clusters", chosen.text("cluster"), "cluster")
    if cluster is None:
        raise chosen.wrong("cluster", "names a cluster that is not in `clusters`; add it there, or choose another context")
    user = _named(documents, "users", chosen.text("user"), "user")
    if user is None and chosen.text("user"):
        raise chosen.wrong("user", "names a user that is not in `users`; add it there, or choose another context")
    return Access(cluster, user or Section(chosen.where, {}), chosen.text("namespace") or "default")


def _current(documents: Sequence[Section]) -> str:
    return next((document.text("current-context") for document in documents if document.text("current-context")), "")


def _server(documents: Sequence[Section], context: str) -> str:
    """Returns the URL of the API server of a context, unchecked."""
    chosen = _named(documents, "contexts", context, "context")
    cluster = _named(documents, "clusters", chosen.text("cluster"), "cluster") if chosen else None
    return cluster.text("server") if cluster else ""


def _named(documents: Sequence[Section], plural: str, name: str, key: str) -> Section | None:
    for document in documents:
        for index, entry in enumerate(document.entries(plural)):
            if entry.get("name") == name:
                found = Section(f"{document.where}: {plural}[{index}]", entry, document.base).sub(key)
                return found or Section(f"{document.where}: {plural}[{index}].{key}", {}, document.base)
    return None
