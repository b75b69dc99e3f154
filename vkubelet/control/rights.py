"""Asks an API server which rights our user has.

Invariant: nothing is stored; a right that an API server does not confirm counts as missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from vkubelet.api.objects import SELFSUBJECTACCESSREVIEWS
from vkubelet.api.rbac import Check
from vkubelet.client.rest import Client
from vkubelet.errors import ApiError, first_error

_CONCURRENCY = 8


async def may(client: Client, attributes: Mapping[str, str]) -> bool:
    """Checks that our user has a right, named as in `resourceAttributes` of a SelfSubjectAccessReview. Raises ApiError."""
    review = await client.create(SELFSUBJECTACCESSREVIEWS, {"spec": {"resourceAttributes": dict(attributes)}})
    status = review.body.get("status")
    return isinstance(status, dict) and status.get("allowed") is True


Review = Callable[[Check], Awaitable[bool]]
"""Checks one right. Raises ApiError."""


async def lacking_rights(client: Client, checks: Iterable[Check], *, review: Review | None = None) -> tuple[Check, ...]:
    """Returns the rights that the API server does not grant us, or that `review` does not confirm. Raises ApiError."""
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def granted(check: Check) -> bool:
        async with slots:
            return await (review(check) if review is not None else may(client, check.attributes))

    wanted = tuple(checks)
    try:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(granted(check), name=str(check)) for check in wanted]
    except* ApiError as problems:
        raise first_error(problems) from problems
    return tuple(check for check, answer in zip(wanted, asked, strict=True) if not answer.result())
