"""Writes the project of a new provider: package, tests with the conformance suite, Dockerfile, chart and CI file.

Invariant: nothing that exists is changed: the directory is new or empty, and every name is checked before the first file is written.
"""

import importlib.metadata
import importlib.resources
import keyword
import re
import string
import sys
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, Self

from attrs import frozen

from vkubelet.errors import SettingsError

LONGEST: Final = 40
"""Characters of a name: it becomes part of the names of objects in a cluster, which have 63."""

_PATTERN: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TAKEN: Final = {"pytest", "test", "tests", "vkubelet"}
_SUFFIX: Final = ".tmpl"
"""Of the templates: they are not Python, YAML or TOML yet."""


@frozen
class Project:
    """A new project; `containers`: the provider starts and stops single containers."""

    name: str
    containers: bool = False

    @classmethod
    def of(cls, name: str, *, containers: bool = False) -> Self:
        """Checks the name. Raises SettingsError."""
        if not _PATTERN.fullmatch(name) or len(name) > LONGEST:
            form = f"must be at most {LONGEST} lower-case letters, digits and single hyphens, and begin with a letter, as in my-batch"
            raise SettingsError("PROVIDER", f"{name!r} {form}")
        made = cls(name, containers)
        bundled = {entry.name for entry in importlib.metadata.distribution("vkubelet").entry_points}
        if keyword.iskeyword(made.package) or made.package in bundled | _TAKEN | sys.stdlib_module_names:
            raise SettingsError("PROVIDER", f"{name!r} is the name of another provider or package, or a word of Python; choose another one")
        return made

    @property
    def package(self) -> str:
        return self.name.replace("-", "_")

    @property
    def kind(self) -> str:
        """Name of the class."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    def files(self) -> Mapping[str, str]:
        """Renders all files; returns content by path in the project."""
        values = {
            "name": self.name,
            "package": self.package,
            "kind": self.kind,
            "contract": "ContainerProvider" if self.containers else "Provider",
            "version": importlib.metadata.version("vkubelet"),
        }
        root = importlib.resources.files(__name__) / "templates"
        found = [each for part in ("common", "containers" if self.containers else "pods") for each in _below(root / part)]
        return {path.replace("PACKAGE", self.package): string.Template(text).substitute(values) for path, text in sorted(found)}

    def write(self, directory: Path) -> list[Path]:
        """Writes the project; returns its files. Raises SettingsError when the directory contains anything, or cannot be written."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise SettingsError("--directory", f"{directory} is not empty, and nothing in it is overwritten; name another directory")
            return [_written(directory / path, text) for path, text in self.files().items()]
        except OSError as error:
            raise SettingsError("--directory", f"{error.filename or directory} cannot be written ({error.strerror})") from error


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields path and text of each template below a folder of the package."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            yield f"{path}{each.name.removesuffix(_SUFFIX)}", each.read_text()


def _written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x") as stream:
        stream.write(text)
    return file
