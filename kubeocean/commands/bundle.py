"""`kubeocean support-bundle`: writes objects, events, logs, metrics and the results of `doctor` to an archive for a bug report.

Invariant: everything is written through one Redactor, Secrets are not written at all, and what could not be read is listed.
"""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from attrs import define, field

from kubeocean.commands import logs, reading, status
from kubeocean.commands.doctor import Doctor
from kubeocean.commands.output import Format, data, in_progress
from kubeocean.doctor.redaction import Redactor
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ClusterBinding
from kubeocean.worker.cluster import Mount
from vkubelet.api import objects
from vkubelet.client.rest import Selection
from vkubelet.commands import clusters
from vkubelet.commands.reading import MissingRight, Reader, T
from vkubelet.errors import ApiError, VKubeletError

_METRICS_PORT = 8080
_LINES = 20_000
_QUOTAS = objects.Resource("", "v1", "resourcequotas", "ResourceQuota", True, objects.Unknown)
_LIMITS = objects.Resource("", "v1", "limitranges", "LimitRange", True, objects.Unknown)
_README = """Support bundle of `kubeocean support-bundle`.

hub/, worker-NAME/   objects of both clusters, without values of Secrets, environments, commands and annotations of other programs
logs/, metrics/      of the manager and of the processes of bindings
doctor.json          results of `kubeocean doctor`
status.json          results of `kubeocean status`
missing.txt          what could not be read, and why

Object names, addresses and labels are not removed. Read it before you publish it.
"""


@define
class Bundle:
    """One run of the command, with the clusters and the binding of `doctor`."""

    doctor: Doctor
    path: Path
    _files: dict[str, str] = field(factory=dict, init=False)
    _missing: list[str] = field(factory=list, init=False)
    _redactor: Redactor = field(factory=Redactor, init=False)

    async def run(self) -> None:
        """Writes the archive. Raises CommandFailed when the hub cannot be read."""
        async with clusters.opened(self.doctor.hub) as client:
            hub = Reader(client, self.doctor.hub)
            with in_progress("reading both clusters"):
                stored, found = await self._bindings(hub)
                await self._hub(hub)
                for binding in found:
                    await self._binding(hub, binding)
                await self._processes(hub, found)
                await self._status(hub, stored)
        self._add("doctor.json", data(await self.doctor.examine(), Format.JSON))
        self._add("README.txt", _README)
        self._add("missing.txt", "\n".join(dict.fromkeys(self._missing)) + "\n")
        write(self.path, self._files, self.doctor.clock.now())
        self.doctor.terminal.write_line(f"{self.path}: {len(self._files)} files; {len(set(self._missing))} parts could not be read")
        self.doctor.terminal.write_line("Values of Secrets are removed, names and addresses are not: read it before you publish it.")

    def _add(self, name: str, text: str) -> None:
        if name.endswith(".json"):
            # The text of JSON would be damaged: a value there may be no string.
            self._files[name] = json.dumps(self._redactor.strings(json.loads(text)), indent=1)
        else:
            self._files[name] = self._redactor.text(text)

    async def _bindings(self, hub: Reader) -> tuple[Sequence[objects.Unknown], Sequence[ClusterBinding]]:
        """Reads all bindings, and those that are asked for: none where the user may not list them, or none exists. Raises CommandFailed."""
        try:
            stored = await hub.list(CLUSTERBINDINGS)
        except MissingRight as error:
            self._missing.append(str(error))
            return (), ()
        asked = self.doctor.binding
        return stored, await reading.bindings(hub, asked) if asked or stored else ()

    async def _status(self, hub: Reader, stored: Sequence[objects.Unknown]) -> None:
        try:
            with clusters.explained(hub.choice):
                self._add("status.json", data(await status.summaries(hub.client, stored), Format.JSON))
        except clusters.CommandFailed as error:
            self._missing.append(f"status: {error}")

    # --- Objects --------------------------------------------------------------------------------------------------------------------

    async def _listed(
        self, reader: Reader, resource: objects.Resource[objects.Unknown], where: Selection = Selection()
    ) -> Sequence[objects.Unknown]:
        """Lists objects as they are stored; what may not be read is noted."""
        try:
            return await reader.list(resource, where)
        except clusters.CommandFailed as error:
            self._missing.append(str(error))
            return ()

    async def _objects(self, reader: Reader, folder: str, resource: objects.Resource[objects.Unknown], *wheres: Selection) -> None:
        found = [each for where in wheres for each in await self._listed(reader, resource, where)]
        bodies = [self._redactor.body({"kind": resource.kind, **each.body}) for each in found]
        self._add(f"{folder}/{resource.plural}.json", json.dumps(bodies))

    async def _hub(self, hub: Reader) -> None:
        space = Selection(namespace=self.doctor.namespace)
        secrets = await self._listed(hub, objects.SECRETS, Selection())
        self._redactor = Redactor.of([each.body for each in secrets])
        for resource, where in (
            (CLUSTERBINDINGS, Selection()),
            (stored(objects.NODES), Selection()),
            (stored(objects.PODS), Selection()),
            (objects.EVENTS, Selection()),
            (objects.CSRS, Selection()),
            (objects.DEPLOYMENTS, space),
            (objects.CONFIGMAPS, space),
            (stored(objects.LEASES), Selection()),
        ):
            await self._objects(hub, "hub", resource, where)

    async def _binding(self, hub: Reader, binding: ClusterBinding) -> None:
        try:
            owner = await reading.owner_of(hub, binding)
            async with reading.worker_reader(hub, binding, owner, chosen=self.doctor.worker) as worker:
                mount = Mount(owner, binding.mount_namespace, binding.mapping)
                tenants = [] if mount.is_shared else await self._listed(worker, objects.NAMESPACES, mount.tenants)
                spaces = [Selection(namespace=name) for name in (mount.namespace, *(each.metadata.name for each in tenants))]
                folder = f"worker-{binding.name}"
                for resource in (POLICIES, stored(objects.NODES)):
                    await self._objects(worker, folder, resource, Selection())
                for resource in (stored(objects.PODS), objects.EVENTS, _QUOTAS, _LIMITS):
                    await self._objects(worker, folder, resource, *spaces)
        except VKubeletError as error:
            self._missing.append(f"worker of ClusterBinding {binding.name}: {error}")

    # --- Processes ------------------------------------------------------------------------------------------------------------------

    async def _processes(self, hub: Reader, found: Sequence[ClusterBinding]) -> None:
        for name in ("", *(binding.name for binding in found)):
            try:
                _, pods = await logs.pods_of(hub, name, self.doctor.namespace)
            except clusters.CommandFailed as error:
                self._missing.append(str(error))
                continue
            for pod in pods:
                await self._process(hub, pod)

    async def _process(self, hub: Reader, pod: objects.Pod) -> None:
        name = pod.metadata.name
        for part, asked in (("log", logs.Asked(tail=_LINES)), ("previous.log", logs.Asked(tail=_LINES, previous=True))):
            try:
                found = [line async for line in logs.lines(hub.client, pod.key, asked)]
                self._add(f"logs/{name}.{part}", "\n".join(found) + "\n")
            except ApiError as error:
                self._missing.append(f"log of Pod {pod.key}: {error.message}")
        path = objects.PODS.path(pod.metadata.namespace, f"{name}:{_METRICS_PORT}")
        try:
            self._add(f"metrics/{name}.txt", (await hub.client.request("GET", f"{path}/proxy/metrics")).decode(errors="replace"))
        except ApiError as error:
            self._missing.append(f"metrics of Pod {pod.key}: {error.message}")


def stored(resource: objects.Resource[T]) -> objects.Resource[objects.Unknown]:
    """Returns the same resource with objects as they are stored."""
    return objects.Resource(resource.group, resource.version, resource.plural, resource.kind, resource.namespaced, objects.Unknown)


def default_path(now: datetime) -> Path:
    return Path(f"kubeocean-support-{now:%Y%m%d-%H%M%S}.tar.gz")


def write(path: Path, files: objects.Json, now: datetime) -> None:
    """Writes the files to a new archive that only its owner can read. Raises CommandFailed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise clusters.CommandFailed(f"cannot create {path}: {error.strerror}; name another file by --output-file") from error
    folder = path.name.partition(".")[0]
    with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(content))
