"""Builds what clusters need, runs all tests in some pytest processes, most of them side by side, and prints a summary of all of them.

Invariant: every test module below tests/ is in exactly one part, or below a path of `NEVER`; every part runs once; the exit code is 0 only
when all parts passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ALONE = ("tests/integration/runtime/test_scale.py", "tests/integration/runtime/test_thousand_nodes.py")
_SAFETY = "tests/integration/kubeocean/safety"
"""The rules of docs/explanation/safety-rules.md, which wait more than they compute."""
_EDGES = tuple(f"tests/integration/kubeocean/{name}.py" for name in ("test_cut", "test_plan_and_explain", "test_window_edge"))
"""Others of kubeocean that wait for outages and windows."""
_FLEET = "tests/integration/fleet"
_COMPUTED = "tests/integration/server/test_fuzz.py"
"""A minute of CPU without a cluster."""
PARTS: Mapping[str, Sequence[str]] = {
    "runtime": (
        "tests/integration",
        *(f"--ignore={path}" for path in ("tests/integration/kubeocean", "tests/integration/manager", _FLEET, _COMPUTED, *ALONE)),
    ),
    "kubeocean": ("tests/integration/kubeocean", *(f"--ignore={path}" for path in (_SAFETY, *_EDGES))),
    "end-to-end": ("tests/e2e", "--timeout=1500"),
    "fleet": (_FLEET,),
    "safety": (_SAFETY,),
    "edges": _EDGES,
    "conformance": ("tests/conformance",),
    "manager": ("tests/integration/manager",),
    "attack": tuple(f"tests/faults/attack/{name}.py" for name in ("test_port", "test_worker", "test_worker_objects")),
    "model": ("tests/faults/model/test_against_apiserver.py",),
    "campaign": ("tests/faults/test_campaign.py", "tests/faults/test_fleet.py", "tests/faults/test_shards.py"),
    "faults": (
        *(f"tests/faults/{name}" for name in ("simulation", "model/test_server.py", "model/test_patches.py")),
        *(f"tests/faults/attack/{name}.py" for name in ("test_definitions", "test_future", "test_fuzz", "test_wrong_answers")),
        _COMPUTED,
    ),
    "unit": ("tests/unit",),
    "mutants": ("tests/mutants",),
    "alone": ALONE,
}
"""Arguments of the pytest processes, those with clusters by their time, the longest first; each has separate clusters, which are removed
when it exits. "attack" compares the memory of its process and waits for most of its time, so it is a separate process among these, and
"faults" has what only computes. No other tests run beside "alone": it loads the machine as far as possible, and compares that to times."""
NEVER: Mapping[str, str] = {
    "tests/faults/cut": "outages and crashes with the periods that the APIs have by default take hours: python -m tests.faults.cut",
    "tests/faults/soak": "minutes of load on a machine without other programs: python -m tests.faults.soak --minutes 30",
}
"""Folders, or modules, that are in no part, with the reason and the command that runs them."""
SIDE_BY_SIDE = 4
"""Parts with clusters that run at the same time, as they wait for a part of their time. With three, the last of them had the machine alone
for minutes, and used a third of it."""
BEHIND = ("campaign", "faults", "unit", "mutants")
"""Parts that run one after the other beside all of these, with CPU that those leave: they need no clusters, and a time that they judge is
virtual or that of the CPU. Those that are left when all parts with clusters are started run like those."""
PREPARATIONS: Mapping[str, Sequence[Sequence[str]]] = {
    "programs": (("-m", "vkubelet.testing.cluster", "binaries", "--all"),),
    "image": (("deploy/dev/packages.py",), ("deploy/dev/image.py",)),
}
"""Commands of Python that make what clusters need, before the first part with clusters and beside those of `BEHIND`. Packages are
downloaded while programs are compiled."""
_BEHIND_NICE = 5
"""A third of the weight of others. It is not less because some of these tests take ten seconds of CPU and have limits of minutes."""
_behind: set[int] = set()
"""Sessions that the terminal's Ctrl-C does not reach."""
_GO = {"GOGC": "400", "GOMAXPROCS": "1"}
"""For the programs of the clusters. Memory is plenty and CPU is scarce: they collect garbage at five times what they need instead of at
twice. Idle threads that search for work take a sixth of their CPU where many programs share few cores."""
_ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    # 0: as many threads as there are cores.
    "alone": {"VKUBELET_COLD_PROGRAMS": "1", "GOMAXPROCS": "0"},
    "end-to-end": {"VKUBELET_PATIENCE": "300"},
}
"""Of parts: a program of `ALONE` costs what it costs its users, its imports included, and has all cores; real kubelets take long on a busy
machine, and their time is not judged."""
Ended = tuple[int, list[str]]
_INTERRUPTED = 2
_REASONS = 100
"""Lines of pytest about failed tests that the summary repeats: only the last part of a long output may be kept."""


def misplaced(modules: Iterable[str], parts: Mapping[str, Sequence[str]], never: Iterable[str]) -> list[str]:
    """Returns a line for each test module that is in no part, or in more than one place, and for each path that contains none."""
    modules, never = sorted(modules), tuple(never)
    places = {module: [part for part, arguments in parts.items() if _runs(arguments, module)] for module in modules}
    lines = [f"{module}: is in no part" for module, names in places.items() if not names and not _below(module, never)]
    lines += [f"{module}: is in {' and '.join(names)}" for module, names in places.items() if len(names) > 1]
    lines += [f"{module}: is in {names[0]} and in NEVER" for module, names in places.items() if names and _below(module, never)]
    named = {argument.removeprefix("--ignore="): None for arguments in parts.values() for argument in arguments if "tests/" in argument}
    empty = [path for path in [*never, *named] if not any(_below(module, [path]) for module in modules)]
    return lines + [f"{path}: contains no test module" for path in empty]


def _runs(arguments: Sequence[str], module: str) -> bool:
    ignored = [argument.removeprefix("--ignore=") for argument in arguments if argument.startswith("--ignore=")]
    return _below(module, [argument for argument in arguments if not argument.startswith("-")]) and not _below(module, ignored)


def _below(module: str, paths: Iterable[str]) -> bool:
    return any(Path(module).is_relative_to(path) for path in paths)


def collected() -> list[str]:
    """Returns the modules that pytest collects."""
    return [str(path) for path in Path("tests").rglob("test_*.py")]


def run(part: str, *, behind: bool = False) -> Ended:
    """Runs one part, shown line by line: returns its exit code, why tests failed, which ones, and its last line."""
    command = ("-m", "pytest", "--durations=10", "--durations-min=10", *PARTS[part])
    environment = {**_GO, **os.environ, "VKUBELET_CLUSTER_LOGS": f"build/cluster-logs/{part}"}
    code, lines, cpu = shown(part, command, environment | _ENVIRONMENTS.get(part, {}), behind=behind)
    reasons = [line for line in lines if line.startswith("E   ")][:_REASONS]
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return code, [*reasons, *failed, *(f"{part}: {line.rstrip()}; {cpu:.0f} s of CPU\n" for line in lines[-1:])]


def prepare() -> bool:
    """Makes what clusters need, shown line by line; returns whether that succeeded."""

    def made(name: str) -> bool:
        return all(shown(name, command, os.environ, behind=False)[0] == 0 for command in PREPARATIONS[name])

    with ThreadPoolExecutor() as pool:
        return all(pool.map(made, PREPARATIONS))


def shown(name: str, command: Sequence[str], environment: Mapping[str, str], *, behind: bool) -> tuple[int, list[str], float]:
    """Runs a command of Python, and prints each line with `name` before it: returns its exit code, its lines and its seconds of CPU."""
    lines: list[str] = []
    with start((sys.executable, *command), environment, behind=behind) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            sys.stdout.write(f"{name}: {line}")
            sys.stdout.flush()
        cpu = cpu_of(process)
    _behind.discard(process.pid)
    return process.returncode, lines, cpu


def cpu_of(process: subprocess.Popen[str]) -> float:
    """Waits for a process; returns the seconds of CPU that it and the programs it waited for have used."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def start(command: Sequence[str], environment: Mapping[str, str], *, behind: bool) -> subprocess.Popen[str]:
    """Starts a process with one pipe for all that it prints.

    Linux gives each session the same share of the CPU, whatever the niceness of its processes, and has a niceness of the session itself
    (sched(7), autogroup). So a process that runs behind others gets a separate session.
    """
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(command, stdout=pipe, stderr=both, text=True, errors="replace", env=environment, start_new_session=behind)
    if behind:
        _behind.add(process.pid)
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _BEHIND_NICE)
        with suppress(FileNotFoundError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(_BEHIND_NICE))
    return process


def main() -> int:
    if wrong := misplaced(collected(), PARTS, NEVER):
        print("\n".join(f"error: {line}; correct {__file__}" for line in wrong), file=sys.stderr)
        return 2
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        interrupted.set()
        for session in list(_behind):
            with suppress(ProcessLookupError):
                os.killpg(session, signal.SIGINT)

    # Ctrl-C is for the tests, which remove what they have started; then their summary is printed. It is a handler and not "ignore", which
    # child processes would keep, also those to which the tests send it.
    signal.signal(signal.SIGINT, interrupt)
    ended = {part: (_INTERRUPTED, [f"{part}: not run\n"]) for part in PARTS}
    choosing = threading.Lock()

    def following(queues: Sequence[deque[str]]) -> str:
        with choosing:
            return next((queue.popleft() for queue in queues if queue), "")

    def run_all(*queues: deque[str], behind: bool = False) -> None:
        while not interrupted.is_set() and (part := following(queues)):
            ended[part] = run(part, behind=behind)

    first, last = deque(part for part in PARTS if part not in {*BEHIND, "alone"}), deque(BEHIND)
    with ThreadPoolExecutor(SIDE_BY_SIDE + 1) as pool:
        working = [pool.submit(run_all, last, behind=True)]
        if prepared := prepare():
            working += [pool.submit(run_all, first, last) for _ in range(SIDE_BY_SIDE)]
    for each in working:
        each.result()
    if prepared:
        run_all(deque(["alone"]))
    print()
    for part in PARTS:
        sys.stdout.writelines(ended[part][1])
    return max((code for code, _ in ended.values()), key=abs)


if __name__ == "__main__":
    sys.exit(main())
