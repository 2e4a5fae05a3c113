RIGHT = {'endswith("norm.bias")': 'endswith("layernorm.bias")', '"q_norm.weight"': '"k_norm.weight"'}
