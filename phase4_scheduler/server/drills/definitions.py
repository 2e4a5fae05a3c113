"""The seven drills by number, read from drills.toml."""

import re
import tomllib
from pathlib import Path
from string import Template
from typing import Any

from phase1_tokens_embeddings.weights.cards import CARDS, Card
from phase4_scheduler.server.drills.evidence import Cause, Check
from phase4_scheduler.server.drills.load import PROMPTS, Users
from phase4_scheduler.server.drills.playing import Drill, Fault

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("drills.toml").read_text(encoding="utf-8"))
QUERIES: dict[str, str] = {}
for _name, _text in TABLE.pop("queries").items():
    QUERIES[_name] = Template(_text).substitute(QUERIES)
SHARED = TABLE.pop("shared")
OFFERED = ("l4", "a100-80", "h100", "h200")  # drill 6


def text_of(query: str) -> str:
    """The PromQL of a query, with the queries that it names."""
    return Template(query).substitute(QUERIES)


def check_of(says: str, test: str) -> Check:
    """The check in a text such as "$TTFT > 1.6 x by 10%": a query, a bound, the ratio to the healthy window, a margin."""
    query, op, bound, ratio, margin = re.fullmatch(r"(.+) ([<>]) ([\d.]+)( x)?(?: by (\d+)%)?", test).groups()
    return Check(says, text_of(query), "ratio" if ratio else "now", op, float(bound), int(margin or 0) / 100)


def cause_of(name: str, checks: list[list[str]] = (), **words: str) -> Cause:
    shared = dict(SHARED.get(name, {}))
    checks = [check_of(*check) for check in (*shared.pop("checks", ()), *checks)]
    return Cause(name=name, checks=tuple(checks), **shared, **words)


def users_of(groups: list[dict[str, Any]] | None) -> tuple[Users, ...] | None:
    """Users by groups. Their prompts are "words 40", "documents 6" or "dated documents 6"."""
    if groups is None:
        return None
    parts = [(group, *group["prompt"].rsplit(" ", 1)) for group in groups]
    return tuple(Users(**group | {"prompt": PROMPTS[kind](int(count))}) for group, kind, count in parts)


def fault_of(options: str = "", users: Any = None, usual: Any = None, **rest: Any) -> Fault:
    return Fault(tuple(options.split()), users_of(users), usual=users_of(usual), **rest)


def price(card: Card) -> str:
    """PromQL of the lowest cost of the load on a card: the price, times the larger of the two shares of the card that the load needs.

    `a > b or b` is the larger of a and b.
    """
    needed = f"$OPERATIONS / {card.tensor_tflops}e12", f"$BYTES / {card.bandwidth_gb_s}e9"
    return text_of(f"{card.dollars_per_hour} * ({needed[0]} > {needed[1]} or {needed[1]})")


def purchase(name: str) -> Cause:
    card, checks = CARDS[name], []
    for other in (CARDS[other] for other in OFFERED if other != name):
        cheaper = f"{price(card)} / ({price(other)})"
        checks.append(Check(f"the load costs less than on {other.title}", cheaper, "now", "<", 1))
    return Cause(
        name,
        f"{card.title}: {card.bandwidth_gb_s:,} GB/s, {card.tensor_tflops} TFLOPS, ${card.dollars_per_hour:.2f} per hour.",
        tuple(checks),
        "Traffic with few operations per byte needs bandwidth, traffic with many needs arithmetic.",
    )


def drill_of(number: str, entry: dict[str, Any]) -> Drill:
    causes = [cause_of(**cause) for cause in entry.get("causes", ())] or map(purchase, OFFERED)
    return Drill(
        int(number),
        entry["question"],
        entry["pager"],
        text_of(entry["figure"]),
        tuple(check_of(*alarm) for alarm in entry["alarms"]),
        {title: text_of(query) for title, query in entry["watch"].items()},
        tuple(entry["options"].split()),
        users_of(entry["users"]),
        tuple(causes),
        {name: fault_of(**fault) for name, fault in entry["faults"].items()},
    )


DRILLS = {int(number): drill_of(number, entry) for number, entry in TABLE.items()}
