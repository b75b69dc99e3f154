"""What a process sees of its pod, printed by a script, read back, and compared.

Invariant: pure data and pure functions; the same pod prints the same text on every node, but for what `Dump.told` names.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, fields, frozen

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where admission mounts the token of the pod's account."""


def script(paths: Sequence[str]) -> str:
    """For a shell of busybox or another one; nothing in it means something to Kubernetes, which looks for a dollar sign before a bracket or
    another one. What of `paths` is not there is left out.
    """
    roots = " ".join(map(shlex.quote, paths))
    found = f"find -L {roots} ! -path '*/..*'"
    return (
        'printf "env "; base64 -w0 < /proc/self/environ; echo; '
        'for a in "$0" "$@"; do printf "arg "; printf %s "$a" | base64 -w0; echo; done; '
        'printf "host "; hostname; '
        'for f in /etc/hosts /etc/resolv.conf; do echo "name $f"; base64 -w0 < "$f"; echo; done; '
        "{ "
        f'{found} -type f | while read -r f; do stat -L -c "file %a,%u:%g %n" "$f"; base64 -w0 < "$f"; echo; done; '
        f'{found} -type d | while read -r d; do stat -L -c "dir %a,%u:%g %n" "$d"; done; '
        f'find {roots} ! -path \'*/..*\' -type l | while read -r l; do echo "link $l"; readlink "$l"; done; '
        # A file is opened for more to be written, and nothing is; a directory gets an entry for a moment.
        f'for r in {roots}; do if [ -d "$r" ]; then mkdir "$r/new" && rmdir "$r/new" && echo "open $r"; '
        'elif [ -e "$r" ]; then (true >> "$r") && echo "open $r"; fi; done; '
        "} 2>/dev/null; "
        "echo end"
    )


_MOMENTS = ("exp", "nbf", "warnafter")
_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")
_OPTIONS = re.compile(r"^options (.*)\n", re.MULTILINE)
_OF_THE_KUBELET = re.compile(r'^kubernetes\.io/config\.(?:seen|source)="[^"]*"\n?', re.MULTILINE)


@frozen
class Dump:
    """What a pod saw. Files by path: mode with owner, and content; `names`: the files by which names are resolved; `writable`: mounts."""

    env: Mapping[str, str]
    arguments: Sequence[str]
    files: Mapping[str, tuple[str, bytes]] = field(factory=dict)
    directories: Mapping[str, str] = field(factory=dict)
    links: Mapping[str, str] = field(factory=dict)
    writable: Sequence[str] = ()
    names: Mapping[str, bytes] = field(factory=dict)
    hostname: str = ""

    def told(self, places: Mapping[str, str]) -> Dump:
        """The same as on any other node. These differences are in the nature of things, and all others are not:

        - `places`: addresses, uids and names, which no two pods share, are replaced by the word that each has there;
        - a token is signed and has a number and moments of its own, so its claims stand for it, with its moments counted from its issue;
        - the options of resolv.conf, which a kubelet writes in any order, are sorted;
        - a kubelet notes in the pod's annotations where and when it has heard of it, and shows these two among the pod's own.
        """
        found = sorted((each for each in places if each), key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, found)) or "(?!)")

        def text(value: str) -> str:
            return pattern.sub(lambda match: places[match[0]], value)

        def data(value: bytes) -> bytes:
            plain = value.decode(errors="surrogateescape")
            plain = _OPTIONS.sub(lambda match: f"options {' '.join(sorted(match[1].split()))}\n", plain)
            plain = _claims(plain) if _TOKEN.fullmatch(plain) and plain.startswith("eyJ") else _OF_THE_KUBELET.sub("", plain)
            return text(plain).encode(errors="surrogateescape")

        return Dump(
            env={name: text(value) for name, value in self.env.items()},
            arguments=[text(value) for value in self.arguments],
            files={text(path): (mode, data(value)) for path, (mode, value) in self.files.items()},
            directories={text(path): mode for path, mode in self.directories.items()},
            links={text(path): text(target) for path, target in self.links.items()},
            writable=sorted(map(text, self.writable)),
            names={path: data(value) for path, value in self.names.items()},
            hostname=text(self.hostname),
        )

    def differences(self, other: Dump) -> Iterator[str]:
        """A line for each; empty when both are equal."""
        for part in fields(Dump):
            mine, its = getattr(self, part.name), getattr(other, part.name)
            if not isinstance(mine, Mapping):
                mine, its = {"": mine}, {"": its}
            for key in sorted(mine.keys() | its.keys()):
                if mine.get(key) != its.get(key):
                    yield f"{part.name} {key}: {mine.get(key)!r}, but {its.get(key)!r}"


def _claims(token: str) -> str:
    part = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    claims.pop("jti", None)
    issued = claims.pop("iat")
    for inner in (claims, claims.get("kubernetes.io", {})):
        inner.update({name: inner[name] - issued for name in _MOMENTS if name in inner})
    return json.dumps(claims, sort_keys=True)


def is_complete(log: str) -> bool:
    """Whether it has the last line of `script`."""
    return log.splitlines()[-1:] == ["end"]


def parse(log: str) -> Dump:
    """What `script` printed. Raises ValueError when it was cut off."""
    lines = log.splitlines()
    if not is_complete(log):
        raise ValueError("the pod did not print everything")
    env: dict[str, str] = {}
    arguments: list[str] = []
    files: dict[str, tuple[str, bytes]] = {}
    directories: dict[str, str] = {}
    links: dict[str, str] = {}
    writable: list[str] = []
    names: dict[str, bytes] = {}
    hostname = ""
    rest = iter(lines[:-1])
    for line in rest:
        kind, _, value = line.partition(" ")
        mode, _, path = value.partition(" ")
        match kind:
            case "env":
                pairs = [pair for pair in base64.b64decode(value).decode(errors="surrogateescape").split("\0") if pair]
                env = dict(pair.split("=", 1) for pair in pairs)
            case "arg":
                arguments.append(base64.b64decode(value).decode(errors="surrogateescape"))
            case "host":
                hostname = value
            case "name":
                names[value] = base64.b64decode(next(rest))
            case "file":
                files[path] = (mode, base64.b64decode(next(rest)))
            case "dir":
                directories[path] = mode
            case "link":
                links[value] = next(rest)
            case "open":
                writable.append(value)
            case _:
                raise ValueError(f"not a line of ours: {line[:40]!r}")
    return Dump(env, arguments, files, directories, links, writable, names, hostname)
