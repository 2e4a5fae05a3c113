RIGHT = {
    "// heads": "/ heads",
    "2 * config": "int(2 * config",
    "* bytes_per_number": "* bytes_per_number)",
    "// (bytes_per_token * tokens_per_user)": "// bytes_per_token // tokens_per_user",
}
WRONG = {"wrong-result": {"max(0,": "max(1,"}}
