"""What the runtime decides without a cluster."""

import pytest

from vkubelet.errors import LeadershipLost, SettingsError, VKubeletError
from vkubelet.provider import Taint
from vkubelet.runtime import default_taints, first_error


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("a.io/b:NoSchedule", Taint("a.io/b", "NoSchedule")),
        ("a.io/b=c:NoExecute", Taint("a.io/b", "NoExecute", "c")),
        ("b=:PreferNoSchedule", Taint("b", "PreferNoSchedule")),
    ],
)
def test_taint_of_the_settings_is_read_as_kubectl_writes_it(text: str, taint: Taint) -> None:
    assert default_taints(text) == (taint,)


def test_no_taint_is_an_empty_text() -> None:
    assert default_taints("") == ()


@pytest.mark.parametrize("text", ["a.io/b", ":NoSchedule", "=c:NoSchedule", "a:Sometimes", "a:"])
def test_taint_that_can_not_be_read_is_refused_by_its_path(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        default_taints(text)
    assert caught.value.path == "node.taint"


def test_first_error_of_nested_groups_is_the_one_that_ends_the_process() -> None:
    lost = LeadershipLost("taken")
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [lost]), VKubeletError("later")])
    assert first_error(group) is lost
