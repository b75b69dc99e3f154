"""Tests of vkubelet.control.rights; what an API server answers is tested in tests/integration/kubeocean/test_permissions.py."""

import asyncio

import pytest

from vkubelet.api.rbac import Check, Rule, checks_of
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client
from vkubelet.control.rights import lacking_rights
from vkubelet.errors import Forbidden

CHECKS = checks_of([Rule("pods", [f"verb{number}" for number in range(20)], why="To test.")])


def client() -> Client:
    return Client(Connection("http://127.0.0.1:1"))


async def test_missing_rights_are_returned_in_the_order_in_which_they_are_listed() -> None:
    async def review(check: Check) -> bool:
        return not check.verb.endswith("3")

    assert await lacking_rights(client(), CHECKS, review=review) == (CHECKS[3], CHECKS[13])


async def test_a_few_reviews_are_in_flight_at_a_time() -> None:
    running, most, release = 0, 0, asyncio.Event()

    async def review(check: Check) -> bool:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        if running == 8:
            release.set()
        await release.wait()
        running -= 1
        return True

    assert await lacking_rights(client(), CHECKS, review=review) == () and most == 8


async def test_a_review_that_fails_is_raised_as_its_own_error() -> None:
    async def review(check: Check) -> bool:
        raise Forbidden("create selfsubjectaccessreviews", "no")

    with pytest.raises(Forbidden, match="selfsubjectaccessreviews"):
        await lacking_rights(client(), CHECKS, review=review)
