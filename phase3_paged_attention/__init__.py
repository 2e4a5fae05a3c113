import labkit  # noqa: F401 - before torch: it says how threads wait
