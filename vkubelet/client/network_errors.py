"""Turns the errors of a connection into Unreachable, and distinguishes a silent server from what this process or its settings caused.

Invariant: no text of an error contains a URL, a header or an address in memory.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from vkubelet.errors import Unreachable

_OUR_OWN = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT}
)
"""Errors for which this process could not even try to connect."""


@contextmanager
def unreachable(attempt: str, *, direct: bool = False) -> Iterator[None]:
    """Turns every network error inside into Unreachable; `direct` where a connection is made to the server itself."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise Unreachable(attempt, "no connection within the time limit", silent=direct) from error
    except TimeoutError as error:
        raise Unreachable(attempt, "no response within the time limit") from error
    except aiohttp.ClientResponseError as error:
        # Not its text: it contains the proxy's URL, which may contain a password.
        raise Unreachable(attempt, f"{type(error).__name__} {error.status}") from error
    except aiohttp.InvalidURL as error:
        # Its text is the URL, likewise.
        raise Unreachable(attempt, "the URL of the server or of its proxy is invalid") from error
    except aiohttp.ClientConnectorError as error:
        # The TLS context is named by its address in memory: no two messages would be equal, and each would count as new.
        raise Unreachable(attempt, str(error).replace(f" ssl:{error.ssl}", ""), silent=direct and _is_silence(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(attempt, str(error) or type(error).__name__) from error
    except ValueError as error:
        # A host name or a header that cannot be encoded; the text may contain it.
        raise Unreachable(attempt, f"the request cannot be sent ({type(error).__name__})") from error


def _is_silence(error: aiohttp.ClientConnectorError) -> bool:
    """Checks that the server did not even complete a handshake: neither its name, its certificate nor this process caused the error."""
    if isinstance(error, (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError)):
        return False
    return error.os_error.errno not in _OUR_OWN
