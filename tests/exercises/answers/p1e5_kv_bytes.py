RIGHT = {
    "// heads": "/ heads",
    "// (bytes_per_token * tokens_per_user)": "// bytes_per_token // tokens_per_user",
}
WRONG = {"wrong-result": {"max(0,": "max(1,"}}
