import labkit  # before torch: it says how threads wait
