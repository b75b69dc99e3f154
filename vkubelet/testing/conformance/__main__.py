"""`python -m vkubelet.testing.conformance --provider ./mine.py`: one command that tests one provider.

Invariant: the exit code is 0 when no rule is broken, 1 when one is or when no cluster could be started, and 2 for an invalid setting;
everything started is stopped.
"""

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from vkubelet import cli, settings
from vkubelet.clock import SystemClock
from vkubelet.errors import SettingsError, VKubeletError
from vkubelet.testing.cluster import ControlPlane, Site
from vkubelet.testing.cluster import Options as PlaneOptions
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.conformance import RULES, Kubectl, Options, Subject, examination_settings, examine, table
from vkubelet.testing.conformance.rules import line


def parser() -> argparse.ArgumentParser:
    """Builds the command line parser."""
    result = argparse.ArgumentParser(
        prog="python -m vkubelet.testing.conformance",
        description="Test one provider against the rules of the provider contract, in the real runtime.",
        epilog="Without --kubeconfig, a separate API server is started, which stops with the command.",
    )
    result.add_argument("--provider", default="", help="NAME of an installed provider, package.module:Class, or ./file.py")
    cli.add_settings_arguments(result)
    result.add_argument(
        "--pod", type=Path, help="YAML of a Pod that is merged into each pod of the suite, its first container into their only one"
    )
    result.add_argument("--image", default=Options().image, help="image of the pods (default %(default)s)")
    result.add_argument("--port", type=int, default=Options().port, help="port of the pods that is forwarded (default %(default)s)")
    echo = "shell command that listens at PORT and echoes what it receives (default %(default)s)"
    result.add_argument("--echo", default=Options().echo, help=echo)
    patience = "seconds to wait for each change of the backend (default %(default)g)"
    result.add_argument("--patience", type=float, default=Options().patience, help=patience)
    result.add_argument("--only", action="append", default=[], metavar="RULE", help="test only this rule; may be repeated")
    result.add_argument("--rules", action="store_true", help="list the rules without testing any")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.rules:
        for rule in RULES:
            say(f"{rule.name}{f' ({rule.needs})' if rule.needs else ''}\n    {rule.sentence}")
        return 0
    # Warnings are kept for the report; without a handler they would be printed between its lines.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        return asyncio.run(_run(arguments))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except VKubeletError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; everything that was started is stopped", file=sys.stderr)
        return 130


def say(text: str) -> None:
    """Prints a line, visible at once even when the output is a file."""
    print(text, flush=True)


async def _run(arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    options, (data, section) = _options(arguments), cli.split_provider_section(cli.settings_data(arguments))
    kind = cli.find_provider(_provider(arguments))
    # Invalid settings are reported before a cluster is started.
    own = cli.provider_settings(kind, section)
    cli.make_provider(kind, own)
    examination_settings(data, address="")
    async with _cluster(arguments, context=data.get("cluster", {}).get("context", "")) as (judge, address):
        chosen = examination_settings(data, address=address)
        subject = Subject(make=lambda: cli.make_provider(kind, own), settings=chosen, kubeconfig=judge.kubeconfig, judge=judge)
        report = await examine(subject, options, only=arguments.only, say=lambda result: say(line(result)))
    say(f"\n{table(report)}")
    return 0 if report.passed else 1


def _provider(arguments: argparse.Namespace) -> str:
    if not arguments.provider:
        raise SettingsError("--provider", "name the provider to test: NAME, package.module:Class, or ./file.py")
    return str(arguments.provider)


def _options(arguments: argparse.Namespace) -> Options:
    """Returns the options. Raises SettingsError."""
    known = {rule.name for rule in RULES}
    for name in arguments.only:
        if name not in known:
            raise SettingsError("--only", f"unknown rule {name!r}; --rules lists all rules")
    if arguments.patience <= 0:
        raise SettingsError("--patience", "must be more than 0")
    pod = settings.read_yaml(arguments.pod) if arguments.pod else {}
    return Options(patience=arguments.patience, image=arguments.image, pod=pod, port=arguments.port, echo=arguments.echo)


@asynccontextmanager
async def _cluster(arguments: argparse.Namespace, *, context: str) -> AsyncIterator[tuple[Kubectl, str]]:
    """Yields kubectl for the given cluster, or for a new one; and the address that a node publishes in it, if that is known."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="conformance-") as cache:
        program = (await Binaries(say=say, clock=clock).ensure(["kubectl"]))["kubectl"]
        if arguments.kubeconfig:
            yield Kubectl(program=program, kubeconfig=Path(arguments.kubeconfig), cache=Path(cache), context=context), ""
            return
        say("starting an API server …")
        options = PlaneOptions(scheduler=False, verify_kubelets=False)
        async with Site(say=say) as site, ControlPlane("conformance", site, options=options) as plane:
            yield Kubectl(program=program, kubeconfig=plane.kubeconfig, cache=Path(cache)), plane.host_address


if __name__ == "__main__":
    sys.exit(main())
