"""Both waiting queues against a plain list; and that their cost does not grow with their length."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.policy import Fcfs, Priority, urgency
from phase4_scheduler.engine.request import Request


def request(name, priority=0, arrival=0.0):
    return Request(str(name), [1], SamplingParams(), arrival_time=arrival, priority=priority)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "back", "remove", "pop"]), st.integers(0, 2), st.integers(0, 99)
    ),
    max_size=60,
)


@given(actions=ACTIONS)
@settings(max_examples=100)
def test_first_come_first_served_is_a_list(actions):
    queue, model, number = Fcfs(), [], 0
    for action, _, choice in actions:
        if action in ("push", "back"):
            number += 1
            item = request(number)
            queue.push(item) if action == "push" else queue.put_back(item)
            model.append(item) if action == "push" else model.insert(0, item)
        elif model:
            item = model[0] if action == "pop" else model[choice % len(model)]
            queue.remove(item)
            model.remove(item)
        assert list(queue) == model and len(queue) == len(model)
        if model:
            assert queue.head() is model[0]


@given(actions=ACTIONS)
@settings(max_examples=100)
def test_the_priority_queue_is_a_sorted_list(actions):
    queue, model, gone, number = Priority(), [], [], 0
    for action, priority, choice in actions:
        if action == "back" and gone:  # one that left comes back into its place
            item = gone.pop(choice % len(gone))
            queue.put_back(item)
            model.append(item)
        elif action in ("push", "back"):
            number += 1
            item = request(number, priority, arrival=choice % 3)
            queue.push(item)
            model.append(item)
        elif model:
            item = min(model, key=urgency) if action == "pop" else model[choice % len(model)]
            queue.remove(item)
            model.remove(item)
            gone.append(item)
        assert list(queue) == sorted(model, key=urgency) and len(queue) == len(model)
        if model:
            assert queue.head() is min(model, key=urgency)


@pytest.mark.parametrize("make", [Fcfs, Priority])
def test_the_work_of_an_operation_does_not_grow_with_the_queue(make):
    """Lines of Python and calls, counted, not timed: with 5,000 waiting as many as with 200, but for a logarithm."""

    def work(number):
        queue = make()
        items = [request(i, priority=i % 7, arrival=i) for i in range(number)]
        for item in items:
            queue.push(item)
        counted = 0

        def trace(frame, event, arg):
            nonlocal counted
            counted += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for item in items[number // 2 : number // 2 + 50]:
                queue.remove(item)
            for item in items[number // 2 : number // 2 + 50]:
                queue.put_back(item)
            for _ in range(50):
                queue.remove(queue.head())
        finally:
            sys.settrace(before)
        return counted

    assert work(5_000) <= 2 * work(200)
