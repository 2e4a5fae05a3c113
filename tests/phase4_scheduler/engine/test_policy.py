"""The cost of both waiting queues does not grow with their length. (Their order: every step of the recordings of vLLM.)"""

import sys

import pytest

from phase2_attention_kvcache.model.sampling_params import SamplingParams
from phase4_scheduler.engine.policy import Fcfs, Priority
from phase4_scheduler.engine.request import Request


def request(name, priority=0, arrival=0.0):
    return Request(str(name), [1], SamplingParams(), arrival_time=arrival, priority=priority)


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
