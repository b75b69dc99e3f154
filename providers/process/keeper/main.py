"""Entry point of the nursery: it waits for orders on its standard input, a socket, and forks a keeper for each.

Invariant: a keeper inherits nothing of the nursery, nor of vkubelet, but its lock; it responds once, with one JSON object, and runs on
alone.

Forked keepers start in a few milliseconds and share their memory. The nursery exits when vkubelet does.
"""

import gc
import json
import os
import signal
import socket
from typing import NoReturn

from . import frames
from .child import Order
from .loop import keep

TRACES = "keeper.log"


def main() -> None:
    """Runs until the socket is closed. With each order come two descriptors: the locked file, and the one for the response."""
    connection = socket.socket(fileno=os.dup(0))
    # Keepers are not waited for: they outlive the nursery.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    cut, descriptors = frames.Frames(), list[int]()
    gc.freeze()
    while True:
        data, more = frames.receive(connection, most=2)
        if not data:
            return
        descriptors += more
        for _, body in cut.feed(data):
            lock, answer, *descriptors = descriptors
            if os.fork() == 0:
                connection.close()
                # Those of an order whose first bytes came with the last ones of this one.
                for other in descriptors:
                    os.close(other)
                _keep(body, answer)
            os.close(lock)
            os.close(answer)


def _keep(body: bytes, answering: int) -> NoReturn:
    try:
        order: Order = json.loads(body)
        os.setsid()
        os.umask(0o077)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")
        _leave_stdio(order["directory"])
        _leave_cgroups(order["keeper_cgroups"])

        def tell(answer: dict[str, object]) -> None:
            os.write(answering, json.dumps(answer).encode() + b"\n")
            if "failed" not in answer:
                # After a failure, closing the response is also the keeper's last action.
                os.close(answering)

        keep(order, tell)
    finally:
        # A traceback must not continue in the nursery's loop.
        _exit()


def _exit() -> NoReturn:
    import sys

    kind, error, trace = sys.exc_info()
    if error is not None:
        sys.excepthook(kind or type(error), error, trace)
        sys.stderr.flush()
    os._exit(0 if error is None else 1)


def _leave_stdio(directory: str) -> None:
    """Redirects stdio: a keeper that fails writes its error to a file beside its state."""
    nothing = os.open(os.devnull, os.O_RDWR)
    traces = os.open(os.path.join(directory, TRACES), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((nothing, nothing, traces)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(traces)


def _leave_cgroups(files: list[str]) -> None:
    """Moves to other control groups, so that a service manager that stops vkubelet with its group does not stop the containers."""
    for path in files:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        except OSError:
            continue
