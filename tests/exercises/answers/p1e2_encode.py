RIGHT = {"min(joins)": "sorted(joins)[0]", "[ranks[part] for part in parts]": "tuple(map(ranks.get, parts))"}
