"""Two queues whose waiting time is known by formula. A simulator that misses these is wrong everywhere.

Requests come at random (Poisson), and c servers share one queue. If service takes an exponentially distributed
time it is called M/M/c; if each takes exactly as long, M/D/c. Real servers are neither: that is what simulating
is for.

Sources: Erlang (1917) for M/M/c; Crommelin, "Delay Probability Formulae When the Holding Times Are Constant"
(1932) for M/D/c.
"""

from scipy.stats import poisson


def _check(load: float, servers: int) -> None:
    if not 0 < load < 1 or servers < 1:
        raise ValueError(
            f"load is {load}, servers is {servers}: a load above 0 and below 1, and at least 1 server, are needed "
            "(at load 1 a queue grows for ever)"
        )


def mmc_wait(load: float, servers: int) -> float:
    """Mean wait before service starts, in mean service times, where service times are exponential.

    Args:
        load: arrival rate x mean service time / servers.

    >>> mmc_wait(0.5, 1)
    1.0
    """
    _check(load, servers)
    offered = load * servers
    # Erlang's B (nobody may wait) server by server, then his C: the share of requests that wait.
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    waiting_share = blocked / (1 - load * (1 - blocked))
    return waiting_share / (servers * (1 - load))


def mdc_wait(load: float, servers: int) -> float:
    """Mean wait before service starts, in service times, where each takes equally long.

    >>> round(mdc_wait(0.5, 1), 6)
    0.5
    """
    _check(load, servers)
    wait, m = 0.0, 1
    while True:
        mean = m * servers * load
        term = poisson.sf(m * servers - 1, mean) - poisson.sf(m * servers, mean) / load
        wait += term
        if abs(term) < 1e-12 * wait:
            return float(wait)
        m += 1
