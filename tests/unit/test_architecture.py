"""The limits that keep the code readable, checked on the source itself.

Invariant: every check is a pure function from source text to complaints, and has a test that shows it complaining.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES, FUNCTION_LINES, NESTING, TEST_NAME = 450, 50, 4, 80
CONTRACT, CONTRACT_LINES = "vkubelet/provider/contract.py", 500

PACKAGES = ("vkubelet", "kubeocean", "fleet", "providers")
SHIPPED = tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
SOURCES = (*SHIPPED, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "deploy").rglob("*.py")))

# The worker loop outlives any reconciler, other loops any item, the error middleware any route, the conformance suite any rule; a failed
# call to a provider is reported and propagates; a thread hands its error to the caller.
BROAD_EXCEPTS = {
    "fleet/agent/providers.py": 1,
    "vkubelet/containers/work.py": 1,
    "vkubelet/control/backoff.py": 1,
    "vkubelet/control/controller.py": 2,
    "vkubelet/pods/lifecycle.py": 1,
    "vkubelet/server/app.py": 1,
    "vkubelet/testing/conformance/suite.py": 1,
    "providers/process/threads.py": 1,
}

LOOSE_TASKS = {"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.shield"}
TIME = {f"datetime.{name}" for name in ("now", "utcnow", "today")} | {"asyncio.sleep"}
TIME |= {f"time.{name}" for name in ("monotonic", "perf_counter", "sleep", "time")}
# Streams taken over from the HTTP server have no parent to wait in.
MAY_USE: dict[str, set[str]] = {
    "vkubelet/clock.py": TIME,
    "vkubelet/server/": LOOSE_TASKS,
}


# Where vkubelet works as root on files that programs of pods change meanwhile: there only `vkubelet.beneath` opens and changes files.
SHARED_WITH_PODS = ("vkubelet/resolve/", "providers/process/")
_BY_NAME = """
    open mkdir makedirs mkdtemp touch mknod mkfifo symlink symlink_to hardlink_to readlink resolve realpath read_text read_bytes write_text
    write_bytes truncate utime chmod chown lchmod lchown unlink rmdir removedirs rename renames iterdir glob rglob listdir scandir walk
    fwalk rmtree copy copy2 copyfile copymode copystat copytree move
"""
BY_NAME = {*_BY_NAME.split()}
ALSO_OF_OTHERS = {"copy", "move", "walk", "open", "remove", "replace", "link"}
"""Names that methods of other objects have too: they count as functions of these modules, and of the language."""
MODULES_OF_FILES = {"os", "shutil", "tempfile", "io", "pathlib"}
MAY_NAME_FILES: dict[str, set[str]] = {
    # Control groups, /proc and what the host says of itself: no pod makes names there.
    "providers/process/cgroups.py": {"open", "mkdir", "rmdir", "read_text", "write_text", "walk"},
    "providers/process/machine.py": {"read_text", "read_bytes"},
    # The directory that the settings name, and /dev/null.
    "providers/process/provider.py": {"resolve", "mkdir", "chmod", "open"},
    # The directory of one start of a container, which is root's.
    "providers/process/keepers.py": {"open"},
    # A program on the standard library alone. Its files lie in such a directory; the tree of a pod it enters by descriptors.
    "providers/process/keeper/": BY_NAME | ALSO_OF_OTHERS,
}

Check = Callable[[str, str], Iterator[str]]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def too_long_modules(path: str, source: str) -> Iterator[str]:
    lines, limit = len(source.splitlines()), CONTRACT_LINES if path == CONTRACT else MODULE_LINES
    if lines > limit:
        yield f"{path}: {lines} lines, at most {limit}"


def undocumented_modules(path: str, source: str) -> Iterator[str]:
    text = ast.get_docstring(parsed(source))
    if not text and not (path.endswith("__init__.py") and not source.strip()):
        yield f"{path}: no module docstring"


@lru_cache(maxsize=1)
def parsed(source: str) -> ast.Module:
    """All checks look at a file before the next is read."""
    return ast.parse(source)


@lru_cache(maxsize=1)
def nodes(source: str) -> Sequence[ast.AST]:
    return list(ast.walk(parsed(source)))


def held(node: ast.AST) -> Iterator[ast.AST]:
    """The statements, handlers and cases directly below; functions are in no other place, and most nodes are in expressions."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        below = getattr(node, name, None)
        if isinstance(below, list):
            yield from below


@lru_cache(maxsize=1)
def functions(source: str) -> Sequence[FunctionNode]:
    waiting, found = [*held(parsed(source))], list[FunctionNode]()
    while waiting:
        node = waiting.pop()
        waiting += held(node)
        if isinstance(node, FunctionNode):
            found.append(node)
    return sorted(found, key=lambda function: function.lineno)


@cache
def contract() -> set[str]:
    return {function.name for function in functions((ROOT / CONTRACT).read_text())}


def too_long_functions(path: str, source: str) -> Iterator[str]:
    for function in functions(source):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > FUNCTION_LINES:
            yield f"{path}:{function.lineno}: {function.name} has {lines} lines, at most {FUNCTION_LINES}"


def depth(node: ast.AST, *, elif_of: ast.If | None = None) -> int:
    """Deepest nesting of blocks below `node`, itself included; an `elif` is as deep as its `if`."""
    chained = isinstance(node, ast.If) and elif_of is not None and elif_of.orelse == [node]
    own = 1 if isinstance(node, BLOCKS) and not chained else 0
    parent = node if isinstance(node, ast.If) else None
    return own + max((depth(child, elif_of=parent) for child in held(node)), default=0)


def too_deep_functions(path: str, source: str) -> Iterator[str]:
    for function in functions(source):
        if (found := depth(function)) > NESTING:
            yield f"{path}:{function.lineno}: {function.name} nests {found} blocks, at most {NESTING}"


def too_many_positional(path: str, source: str) -> Iterator[str]:
    """Only two parameters may be given by position, but for the provider contract, what implements it, and errors that carry an answer."""
    for function in functions(source):
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args) if argument.arg not in ("self", "cls")]
        private = function.name.startswith("_") and not function.name.startswith("__")
        if len(names) > 3 and not private and function.name not in contract():
            yield f"{path}:{function.lineno}: {function.name} takes {len(names)} parameters by position"


def too_long_test_names(path: str, source: str) -> Iterator[str]:
    for function in functions(source):
        if function.name.startswith("test_") and len(function.name) > TEST_NAME:
            yield f"{path}:{function.lineno}: {function.name} has {len(function.name)} characters, at most {TEST_NAME}"


def dotted(node: ast.AST | None) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def broad_excepts(path: str, source: str) -> Iterator[str]:
    found = [line for line, kind in caught(source) if kind in ("", "Exception", "BaseException")]
    if len(found) > BROAD_EXCEPTS.get(path, 0):
        yield f"{path}: broad except in lines {found}, {BROAD_EXCEPTS.get(path, 0)} allowed"


def caught(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that is caught or suppressed; an empty name is a bare except."""
    for node in nodes(source):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            yield from ((node.lineno, dotted(kind).removeprefix("builtins.")) for kind in kinds)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("suppress"):
            yield from ((node.lineno, dotted(kind)) for kind in node.args)


def lists_for_truth(path: str, source: str) -> Iterator[str]:
    """`has` instead of a list that only tells whether anything is there: it costs as much as there is, at each event."""
    for node in nodes(source):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and dotted(node.func) in ("bool", "builtins.bool"):
            asked = node.args
        elif isinstance(node, ast.BoolOp):
            asked = node.values
        elif isinstance(node, ast.If | ast.IfExp):
            asked = [node.test]
        elif isinstance(node, ast.UnaryOp):
            asked = [node.operand]
        for each in asked:
            if isinstance(each, ast.Call) and dotted(each.func).endswith((".by_index", ".on_node")):
                yield f"{path}:{each.lineno}: a list for a truth value; use has()"


def loose_tasks_and_time(path: str, source: str) -> Iterator[str]:
    allowed = {name for prefix, names in MAY_USE.items() if path.startswith(prefix) for name in names}
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and node.module in ("asyncio", "time"):
            used = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            name = dotted(node).removeprefix("datetime.datetime").removeprefix("_")
            used = [f"datetime{name}" if name.startswith(".") else name]
        else:
            continue
        yield from (f"{path}:{node.lineno}: {name} is not for here" for name in used if name in (LOOSE_TASKS | TIME) - allowed)
    yield from tasks_of_the_loop(path, source, allowed)


def tasks_of_the_loop(path: str, source: str, allowed: set[str]) -> Iterator[str]:
    """`create_task` of anything that is not named as a task group."""
    for node in nodes(source):
        if isinstance(node, ast.Attribute) and node.attr == "create_task" and "asyncio.create_task" not in allowed:
            owner = dotted(node.value).rpartition(".")[2]
            if owner != "asyncio" and "group" not in owner and "tasks" not in owner:
                yield f"{path}:{node.lineno}: create_task of {owner or 'an expression'}, which is not a task group"


def files_by_name(path: str, source: str) -> Iterator[str]:
    """Functions that open or change a file by its path, in which a pod may have put a link since it was checked."""
    if not path.startswith(SHARED_WITH_PODS):
        return
    allowed = {name for prefix, names in MAY_NAME_FILES.items() if path.startswith(prefix) for name in names}
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES_OF_FILES:
            used = [alias.name for alias in node.names if alias.name in BY_NAME | ALSO_OF_OTHERS]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = dotted(node.func.value), node.func.attr
            of_files = owner.partition(".")[0] in MODULES_OF_FILES
            used = [name] if name in BY_NAME - ALSO_OF_OTHERS or (of_files and name in BY_NAME | ALSO_OF_OTHERS) else []
            # `str.replace` takes two arguments, a path's method one; `Path.open` is called on what is named as a path.
            used += ["replace"] if name == "replace" and len(node.args) == 1 else []
            used += ["open"] if name == "open" and not of_files and owner.rpartition(".")[2] not in ("asyncio",) else []
        else:
            used = ["open"] if isinstance(node, ast.Call) and dotted(node.func) == "open" else []
        yield from (f"{path}:{node.lineno}: {name} works by name: use vkubelet.beneath" for name in used if name not in allowed)


@cache
def complaints() -> Mapping[Check, Sequence[str]]:
    """The complaints of each check about all files."""
    found: dict[Check, list[str]] = {check: [] for check in (*LIMITS, *RULES)}
    shipped = set(SHIPPED)
    for path in SOURCES:
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        for check in (*LIMITS, *RULES) if path in shipped else LIMITS:
            found[check] += check(name, source)
    return found


LIMITS = (too_long_modules, undocumented_modules, too_long_functions, too_deep_functions, too_long_test_names)
RULES = (broad_excepts, lists_for_truth, loose_tasks_and_time, too_many_positional, files_by_name)


@pytest.mark.parametrize("check", LIMITS, ids=lambda check: check.__name__)
def test_sources_keep_the_limits(check: Check) -> None:
    assert not complaints()[check]


@pytest.mark.parametrize("check", RULES, ids=lambda check: check.__name__)
def test_shipped_code_keeps_the_rules(check: Check) -> None:
    assert not complaints()[check]


NESTED = "def f(x):\n" + "".join(" " * (i + 1) + "if x:\n" for i in range(5)) + " " * 6 + "pass\n"
CHAIN = "def f(x):\n if x:\n  pass\n" + " elif x:\n  pass\n" * 9

BAD: list[tuple[Check, str]] = [
    (too_long_modules, "x = 1\n" * 451),
    (undocumented_modules, "x = 1\n"),
    (too_long_functions, "def f():\n" + "    x = 1\n" * 51),
    (too_long_functions, "class C:\n    async def f(self):\n        '''Told.'''\n" + "        x = 1\n" * 51),
    (too_long_test_names, f"async def test_{'x' * 76}(): pass"),
    (too_deep_functions, NESTED),
    (
        too_deep_functions,
        "async def f(x):\n async with x:\n  async for y in x:\n   try: x()\n   except* E:\n    match x:\n     case 1:\n      while x: x()",
    ),
    (too_many_positional, "def f(a, b, c, d): pass"),
    (broad_excepts, "try:\n    f()\nexcept Exception:\n    pass\n"),
    (broad_excepts, "try:\n    f()\nexcept:\n    pass\n"),
    (broad_excepts, "try:\n    f()\nexcept (KeyError, BaseException) as e:\n    pass\n"),
    (lists_for_truth, "used = entering or bool(self.pods.store.by_index('namespace', name))"),
    (lists_for_truth, "if not self.store.by_index('node', name): f()"),
    (lists_for_truth, "concerns = changed or store.by_index('node', name)"),
    (broad_excepts, "with contextlib.suppress(Exception):\n    f()\n"),
    (loose_tasks_and_time, "import asyncio\nasyncio.create_task(f())\n"),
    (loose_tasks_and_time, "from asyncio import gather\n"),
    (loose_tasks_and_time, "loop.create_task(f())\n"),
    (loose_tasks_and_time, "asyncio.get_running_loop().create_task(f())\n"),
    (loose_tasks_and_time, "from datetime import datetime\ndatetime.now()\n"),
    (loose_tasks_and_time, "import datetime\ndatetime.datetime.now()\n"),
    (loose_tasks_and_time, "import time\nf = time.monotonic\n"),
]
GOOD: list[tuple[Check, str]] = [
    (too_long_functions, "def f():\n    '''" + "text\n" * 60 + "    '''\n    return 1\n"),
    (too_deep_functions, CHAIN),
    (too_many_positional, "def f(self, a, b, *, c, d): pass"),
    (lists_for_truth, "used = self.pods.store.has('namespace', name)\nfor each in store.by_index('node', name): f()"),
    (broad_excepts, "try:\n    f()\nexcept (KeyError, OSError):\n    pass\n"),
    (loose_tasks_and_time, "group.create_task(f())\nself._group.create_task(f())\n"),
]


@pytest.mark.parametrize(("check", "source"), BAD)
def test_each_check_complains_of_bad_source(check: Check, source: str) -> None:
    assert list(check("vkubelet/some.py", source))


@pytest.mark.parametrize(("check", "source"), GOOD)
def test_each_check_accepts_good_source(check: Check, source: str) -> None:
    assert not list(check("vkubelet/some.py", source))


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "os.open(path, os.O_RDONLY)",
        "os.mkdir(path)",
        "path.mkdir(parents=True)",
        "place.path.symlink_to(source)",
        "(root / name).write_text(text)",
        "path.resolve()",
        "os.path.realpath(path)",
        "path.replace(target)",
        "os.replace(path, target)",
        "shutil.rmtree(path)",
        "os.walk(path)",
        "path.open()",
        "from os import mkdir",
        "from shutil import move",
    ],
)
def test_files_that_pods_share_are_not_used_by_name(source: str) -> None:
    for path in ("vkubelet/resolve/files.py", "providers/process/volumes.py"):
        assert list(files_by_name(path, source))
    assert not list(files_by_name("vkubelet/beneath.py", source)) and not list(files_by_name("providers/process/keeper/loop.py", source))


@pytest.mark.parametrize(
    "source", ["text.replace(a, b)", "top.make(path, 0o755)", "top.move(a, b)", "top.walk()", "items.copy()", "path.exists()"]
)
def test_other_uses_of_such_names_are_no_complaint(source: str) -> None:
    assert not list(files_by_name("vkubelet/resolve/files.py", source))


def test_an_exception_for_one_module_does_not_open_another() -> None:
    broad = "try:\n    f()\nexcept Exception:\n    pass\n"
    assert not list(broad_excepts("vkubelet/server/app.py", broad))
    assert list(broad_excepts("vkubelet/server/app.py", broad * 2))
    assert not list(loose_tasks_and_time("vkubelet/server/spdy.py", "asyncio.create_task(f())"))
    assert list(loose_tasks_and_time("vkubelet/server/spdy.py", "asyncio.sleep(1)"))
    assert list(loose_tasks_and_time("vkubelet/clock.py", "asyncio.gather(f())"))
