"""Texts that are packed with one another."""

from __future__ import annotations

import random
import sys
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkubelet.api.codec import encode_json
from vkubelet.api.texts import Text, _dictionaries, packed


def spec(number: int, *, image: str = "nginx", length: int = 0) -> bytes:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    tolerations = [{"key": f"node.kubernetes.io/{name}", "operator": "Exists"} for name in ("not-ready", "unreachable", "memory-pressure")]
    text = b64encode(random.Random(number).randbytes(length * 3 // 4)).decode()
    return encode_json({"containers": [container], "nodeName": f"node-{number}", "tolerations": tolerations, "text": text})


def test_texts_of_one_template_need_little_memory() -> None:
    texts = [spec(number, image="template") for number in range(100)]
    kept = [packed(text) for text in texts]
    assert [each.read() for each in kept] == texts
    assert sum(sys.getsizeof(each.data) for each in kept[1:]) < 80 * len(kept)


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_every_text_is_read_as_it_was_packed(texts: list[bytes]) -> None:
    assert [packed(text).read() for text in (*texts, *reversed(texts))] == [*texts, *reversed(texts)]


@pytest.mark.parametrize("length", [300, 3000, 9000, 15_000, 40_000])
def test_texts_that_resemble_nothing_stay_as_they_are(length: int) -> None:
    texts = [spec(number, length=length) for number in range(4)]
    assert [packed(text).read() for text in texts] == texts


@pytest.mark.parametrize("length", [300, 3000, 9000, 15_000])
def test_long_texts_are_packed_from_begin_to_end(length: int) -> None:
    text = spec(1, image=f"long-{length}", length=length)
    other = text.replace(b"node-1", b"node-2")
    packed(text)
    assert (len(packed(other).data) < 200, packed(other).read()) == (True, other)


def test_texts_compare_as_what_they_contain() -> None:
    one, same, other = packed(spec(1)), packed(spec(1)), packed(spec(2))
    assert one == same
    assert one == spec(1)
    assert spec(1) == one
    assert one != other
    assert one != spec(2)
    assert one != "text"
    assert hash(one) == hash(spec(1))


def test_dictionary_that_no_text_resembles_is_replaced() -> None:
    texts = [spec(number, image="replaced") for number in range(40)]
    unlike = encode_json({"image": "replaced", "text": random.Random(0).randbytes(len(texts[0])).hex()})
    packed(unlike[: len(texts[0])])
    kept = [packed(text) for text in texts]
    assert [each.read() for each in kept] == texts
    assert len(kept[0].data) > 200
    assert all(len(each.data) < 60 for each in kept[20:])


def test_packing_twice_changes_nothing() -> None:
    once = packed(spec(1))
    assert packed(once) is once


def test_dictionaries_are_bounded() -> None:
    for number in range(2000):
        Text.of(spec(number, image=f"image-{number}"))
    assert len(_dictionaries) <= 512
