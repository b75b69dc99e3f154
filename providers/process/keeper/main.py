"""Begins as a program, the nursery: it waits for orders on its standard input, a socket, and forks a keeper for each.

Invariant: a keeper holds nothing of the nursery, nor of vkubelet, but its lock; it answers once, one JSON object, and lives on alone.

Keepers that are forked start in a few milliseconds and share their memory. The nursery ends when vkubelet does.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from typing import NoReturn

from . import frames
from .child import Order
from .life import keep

TRACES = "keeper.log"


def main() -> None:
    """Until the socket ends. With each order come two descriptors: the locked file, and where the answer goes."""
    connection = socket.socket(fileno=os.dup(0))
    # Keepers are not waited for: nobody does, once the nursery has ended.
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
                # Those of an order whose beginning came with the end of this one.
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
                # After a failure the end of the answer is also the keeper's.
                os.close(answering)

        keep(order, tell)
    finally:
        # A traceback must not go on into the nursery's loop.
        _exit()


def _exit() -> NoReturn:
    import sys

    kind, error, trace = sys.exc_info()
    if error is not None:
        sys.excepthook(kind or type(error), error, trace)
        sys.stderr.flush()
    os._exit(0 if error is None else 1)


def _leave_stdio(directory: str) -> None:
    """A keeper that fails says why in a file beside its state."""
    nothing = os.open(os.devnull, os.O_RDWR)
    traces = os.open(os.path.join(directory, TRACES), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((nothing, nothing, traces)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(traces)


def _leave_cgroups(files: list[str]) -> None:
    """So that a service manager that ends vkubelet with all of its group does not end the containers."""
    for path in files:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        except OSError:
            continue
