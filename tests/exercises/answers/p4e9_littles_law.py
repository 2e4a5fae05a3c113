RIGHT = {
    "sum(done - arrival for arrival, done in requests)": "(sum(done for _, done in requests) - sum(arrival for arrival, _ in requests))",
    "n >= rate * stay": "n / stay >= rate",
    "most / (tokens * (fixed + each * most))": "most / (fixed + each * most) / tokens",
}
