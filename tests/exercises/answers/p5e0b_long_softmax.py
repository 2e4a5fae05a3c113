RIGHT = {'largest, total = float("-inf"), 0.0': "largest, total = -1e30, 0.0"}
