"""Answers to debugging lab 4."""

NAMES = "manager.uncache(victim.block_table, first=victim.num_computed_tokens // manager.block_size)"
ALL_NAMES = "manager.uncache(victim.block_table)"
BACK_TO_0 = "victim.num_computed_tokens = 0"
CONFIG = "scheduler.config, chunked_prefill=False, long_prefill_token_threshold=0"
RIGHT = [
    {"[2, 3]": "{3, 2}"},
    # Only if the victim has its part in this step: else all its names are true.
    {
        NAMES: f"if any(part.request is victim for part in output.scheduled):\n        {NAMES}",
        "[2, 3]": "(2, 3)",
    },
]
WRONG = {
    "names-without-contents": [{NAMES: "pass"}, {NAMES: "pass", BACK_TO_0: f"{BACK_TO_0}\n    {NAMES}"}],
    "half-filled-block": {
        "victim.num_computed_tokens // manager.block_size": "-(-victim.num_computed_tokens // manager.block_size)",
        "[2, 3]": "[3]",
    },
    "true-names-taken": [{NAMES: ALL_NAMES}, {NAMES: f"{BACK_TO_0}\n    {NAMES}"}],
    "caching-off": {NAMES: f"{ALL_NAMES}\n    manager.enable_prefix_caching = False"},
    "other-victim": {"max(scheduler.running, key=urgency)": "scheduler.running[-1]"},
    "keeps-computed": {BACK_TO_0: "pass"},
    "broken-books": {"manager.free(victim.block_table)": "pass"},
    "not-counted": {"victim.num_preemptions += 1": "pass", "scheduler.num_preemptions += 1": "pass"},
    "victim-lost": {"scheduler.waiting.put_back(victim)": "pass"},
    # No victim is to be in the middle of its prompt. But a prompt larger than the budget never begins then.
    "stuck": {
        "return victim": f"""from dataclasses import replace

    scheduler.config = replace({CONFIG})
    return victim"""
    },
    "no-victim": {"return victim": "pass"},
    "other-blocks": [{"[2, 3]": "[3]"}, {"[2, 3]": "[0, 1, 2, 3]"}],
}
