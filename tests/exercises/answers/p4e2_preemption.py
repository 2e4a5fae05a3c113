RIGHT = {"waiting.appendleft(victim)": "waiting.insert(0, victim)", "return plan": "return tuple(plan)"}
