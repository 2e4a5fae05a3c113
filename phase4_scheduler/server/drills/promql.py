"""PromQL, Prometheus' query language, on a recording: the part that a drill needs.

    vllm:num_requests_running                              the last value of each series of that name
    vllm:request_success_total{finished_reason="stop"}     only those with that label
    rate(vllm:generation_tokens_total[10s])                growth of a counter a second, over the last 10 s
    sum by (source) (rate(vllm:prompt_tokens_by_source_total[10s]))
    rate(vllm:x_seconds_sum[10s]) / rate(vllm:x_seconds_count[10s]) > 0.5
    histogram_quantile(0.95, sum by (le) (rate(vllm:x_seconds_bucket[10s])))

A result is a number, or a *vector*: a value for each set of labels. `a / b` divides the values whose labels are equal, so
where no labels agree the result is empty: the most frequent trap of the language, and no error. A comparison keeps the
values for which it holds; `a > 1 and b < 2` keeps those of a where both do.

The grammar comes from the package promql-parser. What a query means follows Prometheus 2.42, promql/functions.go,
engine.go and quantile.go.
"""

import math
import operator
import re
from collections.abc import Callable

import promql_parser as ast

from phase4_scheduler.server.drills.recording import Labels, Recording

Vector = dict[Labels, float]
Samples = list[tuple[float, float]]
LOOKBACK = 300.0  # seconds after which a series without samples is no longer there

ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a),
}
COMPARISON: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "min": min, "max": max, "count": len, "avg": lambda values: sum(values) / len(values),
}  # fmt: skip


def query(recording: Recording, text: str, at: float) -> float | Vector:
    """What a query gives at a moment.

    Args:
        at: seconds, on the recording's clock.

    Raises:
        ValueError: it is no PromQL, or PromQL that is not known here.
    """
    return Evaluation(recording, at).value(ast.parse(text))


def number(recording: Recording, text: str, at: float) -> float:
    """A query's result as one number: NaN if it is empty.

    Raises:
        ValueError: it has several values; or as `query`.
    """
    result = query(recording, text, at)
    if not isinstance(result, dict):
        return result
    if len(result) > 1:
        raise ValueError(f"{text} has {len(result)} values: add them up with sum(...), or choose with labels")
    return next(iter(result.values()), math.nan)


class Evaluation:
    """One query at one moment: a method for each kind of expression."""

    def __init__(self, recording: Recording, at: float) -> None:
        self.recording, self.at = recording, at

    def value(self, node: ast.Expr) -> float | Vector:
        match node:
            case ast.NumberLiteral():
                return node.val
            case ast.ParenExpr():
                return self.value(node.expr)
            case ast.UnaryExpr():
                return combine(ARITHMETIC["*"], -1.0, self.value(node.expr))
            case ast.VectorSelector():
                return {labels: found[-1][1] for labels, found in self.samples(node, LOOKBACK).items()}
            case ast.Call():
                return self.call(node)
            case ast.AggregateExpr():
                return self.aggregate(node)
            case ast.BinaryExpr():
                return self.binary(node)
        raise ValueError(f"{node} is PromQL, and not known here")

    def samples(self, node: ast.VectorSelector, seconds: float) -> dict[Labels, Samples]:
        """The samples of the selected series in the last `seconds`."""
        if node.offset or node.at:
            raise ValueError("offset and @ are not known here")
        wanted = list(node.matchers.matchers)
        if node.name:
            wanted.append(ast.Matcher(ast.MatchOp.Equal, "__name__", node.name))
        chosen = {}
        for labels, samples in list(self.recording.series.items()):  # a scraper may be adding some
            if all(matches(m, dict(labels).get(m.name, "")) for m in wanted):
                chosen[labels] = [(t, v) for t, v in samples if self.at - seconds <= t <= self.at]
        return {labels: within for labels, within in chosen.items() if within}

    def call(self, node: ast.Call) -> Vector:
        name = node.func.name
        if name == "histogram_quantile":
            return histogram_quantile(*map(self.value, node.args))
        if name not in OVER_RANGE:
            known = ", ".join([*OVER_RANGE, "histogram_quantile"])
            raise ValueError(f"the function {name} is not known here: {known}")
        range_ = node.args[0]
        if not isinstance(range_, ast.MatrixSelector):
            raise ValueError(f"{name} of a subquery is not known here: give a range, such as x[12s]")
        seconds = range_.range.total_seconds()
        found = self.samples(range_.vector_selector, seconds)
        values = {
            nameless(labels): OVER_RANGE[name](samples, self.at - seconds, self.at)
            for labels, samples in found.items()
        }
        return {labels: value for labels, value in values.items() if value is not None}

    def aggregate(self, node: ast.AggregateExpr) -> Vector:
        name, inner, modifier = str(node.op), self.value(node.expr), node.modifier
        if (
            name not in AGGREGATIONS
            or not isinstance(inner, dict)
            or (modifier and not str(modifier.type).endswith("By"))
        ):
            raise ValueError(
                f"{node} is not known here: {', '.join(AGGREGATIONS)} of a vector, also with by (...)"
            )
        kept = set(modifier.labels) if modifier else set()
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in kept), []).append(value)
        return {labels: float(AGGREGATIONS[name](values)) for labels, values in groups.items()}

    def binary(self, node: ast.BinaryExpr) -> float | Vector:
        op, left, right, how = str(node.op), self.value(node.lhs), self.value(node.rhs), node.modifier
        if how and how.matching:
            raise ValueError(
                "on (...) and ignoring (...) are not known here: add the labels up with sum(...)"
            )
        if op in ("and", "or", "unless") and isinstance(left, dict) and isinstance(right, dict):
            there = {nameless(labels) for labels in (left if op == "or" else right)}
            if op == "or":
                return left | {k: v for k, v in right.items() if nameless(k) not in there}
            return {k: v for k, v in left.items() if (nameless(k) in there) == (op == "and")}
        if op in ARITHMETIC:
            return combine(ARITHMETIC[op], left, right)
        if op not in COMPARISON:
            raise ValueError(f"the operator {op} is not known here")
        holds = combine(lambda a, b: float(COMPARISON[op](a, b)), left, right)
        if not isinstance(holds, dict) or (how and how.return_bool):
            return holds
        kept = left if isinstance(left, dict) else right  # 0.5 < metric: the metric's values are kept
        return {labels: value for labels, value in kept.items() if holds.get(nameless(labels))}


def combine(
    op: Callable[[float, float], float], left: float | Vector, right: float | Vector
) -> float | Vector:
    """An operator between numbers, between a number and each value, or between the values of equal labels."""
    if not isinstance(left, dict) and not isinstance(right, dict):
        return op(left, right)
    if not isinstance(left, dict):
        return {nameless(labels): op(left, value) for labels, value in right.items()}
    if not isinstance(right, dict):
        return {nameless(labels): op(value, right) for labels, value in left.items()}
    left, right = by_labels(left), by_labels(right)
    return {labels: op(value, right[labels]) for labels, value in left.items() if labels in right}


def by_labels(vector: Vector) -> Vector:
    """The values by their labels without the name. Raises ValueError: two are equal then."""
    keyed = {nameless(labels): value for labels, value in vector.items()}
    if len(keyed) < len(vector):
        raise ValueError("two series have the same labels there: add them up with sum(...) first")
    return keyed


def nameless(labels: Labels) -> Labels:
    """A computed value has no name any more."""
    return frozenset(pair for pair in labels if pair[0] != "__name__")


def matches(matcher: ast.Matcher, value: str) -> bool:
    op = matcher.op
    if op in (ast.MatchOp.Equal, ast.MatchOp.NotEqual):
        return (value == matcher.value) == (op == ast.MatchOp.Equal)
    return bool(re.fullmatch(matcher.value, value)) == (op == ast.MatchOp.Re)


def histogram_quantile(q: float, buckets: Vector) -> Vector:
    """The value that a share `q` of a histogram's observations stays below: in the bucket where it lies, on the straight line.

    Args:
        buckets: by `le`, how many observations were no larger. The last one is "+Inf".
    """
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        le = dict(labels).get("le")
        rest = frozenset(pair for pair in nameless(labels) if pair[0] != "le")
        if le is not None:
            histograms.setdefault(rest, []).append((float(le), count))
    return {labels: quantile(q, sorted(histogram)) for labels, histogram in histograms.items()}


def quantile(q: float, histogram: list[tuple[float, float]]) -> float:
    """Of (upper end of a bucket, observations up to there); NaN without observations or without a last bucket."""
    (last, total) = histogram[-1]
    if last != math.inf or len(histogram) < 2 or not total > 0:
        return math.nan
    if not 0 <= q <= 1:
        return math.copysign(math.inf, q - 0.5)
    start = below = 0.0
    for end, count in histogram:
        if end == math.inf:
            return start
        if count >= q * total:
            return start + (end - start) * (q * total - below) / (count - below) if end > 0 else end
        start, below = end, count
    return math.nan


# ---------------------------------------------------------------------- functions of a range


def increase(samples: Samples, start: float, end: float) -> float | None:
    """How much a counter grew from `start` to `end`. A value below the one before it means that the server started anew.

    The first sample lies a little after `start`, the last a little before `end`. The growth between them is extended to
    the borders, unless they are further away than 1.1 times the usual distance of samples: then by half a distance.
    """
    if len(samples) < 2:
        return None
    (first_time, first), (last_time, last) = samples[0], samples[-1]
    grew = last - first
    for (_, before), (_, after) in zip(samples, samples[1:]):
        if after < before:
            grew += before
    sampled = last_time - first_time
    usual = sampled / (len(samples) - 1)
    to_start, to_end = first_time - start, end - last_time
    if grew > 0 and first >= 0:  # a counter begins at 0: do not extend to before that
        to_start = min(to_start, sampled * first / grew)
    covered = sampled
    for distance in (to_start, to_end):
        covered += distance if distance < 1.1 * usual else usual / 2
    return grew * covered / sampled


def rate(samples: Samples, start: float, end: float) -> float | None:
    grew = increase(samples, start, end)
    return None if grew is None else grew / (end - start)


OVER_RANGE: dict[str, Callable[[Samples, float, float], float | None]] = {
    "rate": rate,
    "increase": increase,
    "avg_over_time": lambda samples, start, end: sum(v for _, v in samples) / len(samples),
    "max_over_time": lambda samples, start, end: max(v for _, v in samples),
    "min_over_time": lambda samples, start, end: min(v for _, v in samples),
}
