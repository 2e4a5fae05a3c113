"""Grader of exercise 4.6: alerts that tell causes apart, evaluated on the recorded metrics of real drills."""

import re
from collections.abc import Iterator

import promql_parser as ast

from exercises.judging.comparing import show
from exercises.judging.judge import Exercise
from exercises.judging.verdict import NotYet
from exercises.phase4.recorded_drills import Minute, minutes_of
from exercises.phase4.two_causes import after_a_day, at_another_pace, while_idle
from phase4_scheduler.server.drills import query
from phase4_scheduler.server.drills.promql import ARITHMETIC, COMPARISON

ALERTS = {
    "max_num_seqs_too_low": (1, "queue"),
    "one_at_a_time": (4, "client"),
    "cache_too_small": (4, "pool"),
    "no_hits": (5, "timestamp"),
}
"""The drill of each alert, and the cause for which it fires."""
EXERCISE = Exercise("p4e6_two_causes", **{alert: {} for alert in ALERTS})
SAYS = EXERCISE.says()


@EXERCISE.grader
def grade_queries(*alerts: str) -> None:
    for name, text in zip(ALERTS, alerts, strict=True):
        grade(name, text)


def grade(name: str, text: str) -> None:
    """One alert."""
    drill, cause = ALERTS[name]
    if not isinstance(text, str):
        raise NotYet("wrong-type", "An alert is PromQL in quotes.", name, show(text), "a text")
    tried = f'{name} = "{" ".join(text.split())}"'
    tree = parsed(text, tried)
    minutes = minutes_of(drill)
    check_names(tree, minutes[0], tried)
    fired = {minute: fires(text, minute, tried) for minute in minutes}
    if any(fired[m] != (m.cause == cause) for m in minutes):
        raise SAYS.no(
            diagnosis_of(tree, fired, cause), tried, told(fired), told({m: m.cause == cause for m in minutes})
        )
    versions = {
        "hangs-on-the-machine": [at_another_pace(m, times) for m in minutes for times in (5.0, 0.2)],
        "counts-since-the-start": [after_a_day(m) for m in minutes],
    }
    for diagnosis, others in versions.items():
        fired = {minute: fires(text, minute, tried) for minute in others}
        if wrong := [m for m in others if fired[m] != (m.cause == cause)]:
            says = "fires" if fired[wrong[0]] else "does not fire"
            raise SAYS.no(diagnosis, tried, f"{says}: {wrong[0]}", "as on the recorded drill")
    if fires(text, while_idle(minutes[0]), tried):
        raise SAYS.no(
            "fires-without-requests", tried, "fires: the healthy server, without requests", "does not fire"
        )


def parsed(text: str, tried: str) -> ast.Expr:
    try:
        return ast.parse(text)
    except ValueError as error:
        raise SAYS.no("not-promql", tried, error=error) from None


def fires(text: str, minute: Minute, tried: str) -> bool:
    """Whether an alert gives a value at the end of a minute."""
    try:
        result = query(minute.recording, text, minute.end)
    except ValueError as error:
        raise SAYS.no("not-known-here", tried, error=error) from None
    if not isinstance(result, dict):
        raise SAYS.no("a-number-alone", tried, show(result))
    return bool(result)


def told(fired: dict[Minute, bool]) -> str:
    return "\n".join(f"{'fires  ' if did else 'silent '} {minute}" for minute, did in fired.items())


# ---------------------------------------------------------------------- what a query is made of


def parts(node: ast.Expr, inside: str = "") -> Iterator[tuple[ast.Expr, str]]:
    """All parts of a query, each with the function that it is an argument of."""
    yield node, inside
    if isinstance(node, ast.Call):
        for argument in node.args:
            yield from parts(argument, node.func.name)
    elif isinstance(node, ast.BinaryExpr):
        yield from parts(node.lhs)
        yield from parts(node.rhs)
    elif isinstance(node, (ast.ParenExpr, ast.AggregateExpr, ast.UnaryExpr)):
        yield from parts(node.expr)
    elif isinstance(node, ast.MatrixSelector):
        yield from parts(node.vector_selector, inside)


def check_names(tree: ast.Expr, minute: Minute, tried: str) -> None:
    """Names that no series has, and counters that are not asked for their growth."""
    for node, inside in parts(tree):
        if not isinstance(node, ast.VectorSelector) or not node.name:
            continue
        if node.name not in minute.names:
            for ending in ("_total", "_sum"):
                if node.name + ending in minute.names:
                    raise SAYS.no(f"no-such-name (without {ending})", tried, name=node.name)
            raise SAYS.no("no-such-name", tried, name=node.name)
        if re.search("_(total|sum|count)$", node.name) and not inside:
            raise SAYS.no("counter-without-rate", tried, name=node.name)


def compares(tree: ast.Expr) -> bool:
    return any(isinstance(node, ast.BinaryExpr) and str(node.op) in COMPARISON for node, _ in parts(tree))


def diagnosis_of(tree: ast.Expr, fired: dict[Minute, bool], cause: str) -> str:
    """What a wrong alert is called."""
    mine = [did for minute, did in fired.items() if minute.cause == cause]
    others = {minute.cause for minute, did in fired.items() if minute.cause != cause and did}
    if not compares(tree):
        return "no-comparison"
    if not any(fired.values()):
        ranges = [n.range.total_seconds() for n, _ in parts(tree) if isinstance(n, ast.MatrixSelector)]
        if ranges and min(ranges) < 2:
            return "range-too-short"
        return "labels-differ" if labels_differ(tree, next(iter(fired))) else "never-fires"
    if not any(mine):
        return "wrong-way-round"
    if not all(mine):
        return "misses-a-minute"
    return "false-alarm" if "nothing" in others else "takes-it-for-another"


def labels_differ(tree: ast.Expr, minute: Minute) -> bool:
    """Whether an operator gets values on both sides and gives none, since no labels are equal."""

    def values(node: ast.Expr) -> int:
        result = query(minute.recording, str(node), minute.end)
        return len(result) if isinstance(result, dict) else 1

    return any(
        isinstance(node, ast.BinaryExpr) and str(node.op) in ARITHMETIC and not values(node) and values(node.lhs) and values(node.rhs)
        for node, _ in parts(tree)
    )  # fmt: skip
