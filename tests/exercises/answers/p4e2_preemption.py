RIGHT = [
    {"waiting.appendleft(victim)": "waiting.insert(0, victim)", "return plan": "return tuple(plan)"},
    {"plan.append((request, n))": "yield request, n", "return plan": "return"},
]
