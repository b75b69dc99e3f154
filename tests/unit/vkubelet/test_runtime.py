"""What the runtime decides without a cluster."""

from vkubelet.errors import LeadershipLost, VKubeletError
from vkubelet.runtime import first_error


def test_first_error_of_nested_groups_is_the_one_that_ends_the_process() -> None:
    lost = LeadershipLost("taken")
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [lost]), VKubeletError("later")])
    assert first_error(group) is lost
