def kv_step_by_step(config, size=2):
    if "head_dim" in config:
        numbers = config["head_dim"]
    else:
        numbers = config["hidden_size"] / config["num_attention_heads"]
    if "num_key_value_heads" in config:
        numbers *= config["num_key_value_heads"]
    else:
        numbers *= config["num_attention_heads"]
    key_and_value = numbers + numbers
    return int(key_and_value * size * config["num_hidden_layers"])


def users_by_counting(card, weights, token, n):
    left = card - weights
    if left <= 0:
        return 0
    tokens = left // token
    return tokens // n


RIGHT = [(kv_step_by_step, users_by_counting)]
WRONG = {"wrong-result": {"max(0,": "max(1,"}}
