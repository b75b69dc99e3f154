"""What is stored is read again, within its bound, and what a policy's status and the CSV show of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from kubeocean.ledger.account import Cell, Ledger, Part, Place, between, without_nodes
from kubeocean.ledger.text import MOST_NAMESPACES_NAMED, Summaries, Texts, decimal, decode, encode, long_rows, parse
from tests.unit.kubeocean.builders import at
from vkubelet.api.quantity import Quantity, Resources, parse_resources

NOW = at("2026-01-05 10:30")


def by_node(node: str, start: datetime, end: datetime) -> Sequence[Part]:
    return [Part("gpu" if node == "node-0" else "all", start, end)]


def ledger(*, nodes: int = 2, namespaces: int = 2, hours: int = 3) -> Ledger:
    made = Ledger.begin(NOW)
    amounts = parse_resources({"cpu": "333m", "memory": "1Gi", "pods": "1"})
    for node in range(nodes):
        for space in range(namespaces):
            place = Place(f"node-{node}", f"team-{space}")
            made.add(place, between(amounts, NOW - timedelta(hours=hours, seconds=1.5), NOW), deciders=by_node, now=NOW)
    made.through = NOW
    return made


def rounded(sums: dict[Cell, Resources]) -> dict[Cell, dict[str, str]]:
    return {cell: {name: decimal(amount) for name, amount in lent.items()} for cell, lent in sums.items()}


def test_what_is_stored_is_read_again() -> None:
    made = ledger()
    data = Texts().render(made)
    read = parse(data)
    assert read is not None
    assert (read.since, read.through) == (made.since, made.through)
    assert {hour: rounded(sums) for hour, sums in read.hours.items()} == {hour: rounded(sums) for hour, sums in made.hours.items()}
    assert rounded(read.total) == rounded(made.total)
    assert data["2026-01-05T08Z"].splitlines()[:2] == [
        "policy,node,namespace,cpu,memory,pods",
        "all,node-1,team-0,1198.8,3865470566400,3600",
    ]


def test_an_hour_is_rendered_again_only_after_it_was_changed() -> None:
    made, texts = ledger(), Texts()
    before = texts.render(made)
    made.add(Place("node-1", "team-0"), between({"cpu": Quantity.of(1)}, NOW - timedelta(hours=1), NOW), deciders=by_node, now=NOW)
    after = texts.render(made)
    assert {name for name in before if before[name] != after[name]} == {"2026-01-05T09Z", "2026-01-05T10Z", "total"}


def test_nodes_of_the_oldest_hours_are_summed_first_where_the_text_is_too_long() -> None:
    made = ledger(nodes=20, namespaces=3, hours=10)
    whole = sum(map(len, Texts().render(made).values()))
    data = Texts(limit=whole - 5000).render(made)
    assert sum(map(len, data.values())) <= whole - 5000
    read = parse(data)
    assert read is not None
    hours = sorted(read.hours)
    assert {cell.node for cell in read.hours[hours[0]]} == {""} and "node-7" in {cell.node for cell in read.hours[hours[-1]]}
    for sums, stored in ((made.last_day(NOW), read.last_day(NOW)), (made.total, read.total)):
        one, other = without_nodes(sums), without_nodes(stored)
        assert one.keys() == other.keys()
        assert all(abs(one[name]["memory"].nanos / other[name]["memory"].nanos - 1) < 1e-6 for name in one)


def test_the_text_is_bounded_whatever_the_number_of_namespaces() -> None:
    data = Texts(limit=4000).render(ledger(nodes=30, namespaces=30, hours=5))
    assert sum(map(len, data.values())) <= 4000


def test_text_that_cannot_be_read_counts_for_nothing() -> None:
    assert parse({}) is None and parse({"through": "soon"}) is None
    text = "policy,node,namespace,cpu\np,n,s,1.5\np,n\np,n,t,many\np,n,u,--1\np,n,v,1.5.5\n\n\x00"
    assert decode(text) == {Cell("p", "n", "s"): parse_resources({"cpu": "1500m"})}
    assert decode("policy,node,namespace,cpu\np,n,s,-2.25\n")[Cell("p", "n", "s")] == parse_resources({"cpu": "-2250m"})
    assert decode("nonsense") == {} == decode("")
    read = parse({"through": "2026-01-05T10:30:00Z", "2026-01-05T09Z": encode({}), "2026-99-05T09Z": "", "other": "x"})
    assert read is not None and list(read.hours) == [at("2026-01-05 09:00")]


def test_the_summary_of_a_policy_names_the_namespaces_that_borrowed_most() -> None:
    made = ledger(nodes=3, namespaces=MOST_NAMESPACES_NAMED + 5)
    made.add(Place("node-2", "team-9"), between({"cpu": Quantity.of(1)}, NOW - timedelta(seconds=10), NOW), deciders=by_node, now=NOW)
    summary = Summaries().of(made, "all", now=NOW)
    assert summary["through"] == "2026-01-05T10:30:00.000000Z" and summary["from"] == summary["since"] == "2026-01-05T07:29:58Z"
    assert len(summary["namespaces"]) == MOST_NAMESPACES_NAMED
    assert summary["namespaces"][0]["name"] == "team-9" and summary["namespaces"][1]["name"] == "team-0"
    seconds = 2 * (MOST_NAMESPACES_NAMED + 5) * 10801.5
    assert summary["lastDay"]["pods"] == decimal(Quantity.parse(f"{seconds}")) == summary["total"]["pods"]
    assert Summaries().of(made, "none", now=NOW)["lastDay"] == {}


def test_the_csv_has_a_row_for_each_hour_cell_and_resource() -> None:
    rows = list(long_rows(ledger(nodes=1, namespaces=1, hours=1), "demo"))
    assert rows[0] == ["2026-01-05T09:00:00Z", "demo", "gpu", "node-0", "team-0", "cpu", "599.9"]
    assert len(rows) == 2 * 3


def test_amounts_are_decimal_numbers_with_three_digits() -> None:
    assert [decimal(Quantity.parse(text)) for text in ("0", "1.5", "1234567u", "-2500m", "4Gi", "12.0004")] == [
        "0",
        "1.5",
        "1.235",
        "-2.5",
        "4294967296",
        "12",
    ]
