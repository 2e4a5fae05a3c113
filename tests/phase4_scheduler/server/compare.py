"""What our server answers differently from vLLM, in words."""

import re

TOLERANCE = 1e-3  # of a log probability: both sides compute in float32, in another order
FREE = ("version", "root", "owned_by")  # each server's own; only their types have to agree
ACCIDENTS = {
    "chat: messages None": "Python's own message about iterating None",
    "chat: content of strings": "a message of pydantic, raised too late to name the field",
    "chat: content part without a type": "the same",
    "chat: content part of an unknown type": "the same",
    "chat: content part without text": "the same",
}  # vLLM refuses these, but its words are accidents: only the status has to agree


def differences(asked, theirs, ours):
    """Compare two answers as `vllm_requests.ask` returns them; an empty list says that they agree.

    >>> differences(asked, vllm_answer, our_answer)
    ["status: 400 there, 200 here"]
    """
    if theirs["status"] != ours["status"]:
        return [f"status: {theirs['status']} there, {ours['status']} here"]
    if asked.name in ACCIDENTS:
        return []
    found = []
    if media_type(theirs) != media_type(ours):
        found.append(f"content type: {media_type(theirs)} there, {media_type(ours)} here")
    elif "events" in theirs:
        theirs, ours = fold(theirs["events"]), fold(ours["events"])
        if "middle" not in theirs["fields"].keys() & ours["fields"].keys():  # one side sent all at once
            theirs["fields"].pop("middle", None)
            ours["fields"].pop("middle", None)
        found += compare(theirs, ours, "stream", asked.sampled)
    else:
        found += compare(theirs.get("body"), ours.get("body"), "body", asked.sampled)
    return found


def media_type(answer):
    return (answer["content_type"] or "").split(";")[0].strip() or None


def leaves(value, where):
    """(path, value) of each part of a JSON value that holds no others; a path is like `body.choices.0.text`."""
    parts = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, part in parts.items():
        yield from leaves(part, f"{where}.{key}")
    if not parts:
        yield where, value


def compare(theirs, ours, where, sampled):
    theirs, ours = dict(leaves(theirs, where)), dict(leaves(ours, where))
    found = [f"{path}: missing here" for path in theirs.keys() - ours.keys()]
    found += [f"{path}: only here" for path in ours.keys() - theirs.keys()]
    both = ((path, theirs[path], ours[path]) for path in theirs.keys() & ours.keys())
    found += [f"{path}: {a!r} there, {b!r} here" for path, a, b in both if not agree(a, b, path, sampled)]
    return sorted(found)


def agree(theirs, ours, where, sampled):
    """Whether two values that hold no others count as the same."""
    field = where.rsplit(".", 1)[-1]
    if isinstance(theirs, float) and type(ours) in (int, float):
        return abs(theirs - ours) <= TOLERANCE
    if type(theirs) is not type(ours):
        return False
    if field in FREE or where in ("body.detail", "body.error.message"):
        return bool(theirs) == bool(ours)  # words may differ, but there have to be some
    if where == "body.error.param" and theirs:
        # Without vLLM's classes: body.messages.0.SomeMessageParam.role
        theirs, ours = (re.sub(r"\.[A-Z]\w*", "", param) for param in (theirs, ours))
    # cache_write_tokens: by the size of blocks.
    return theirs == ours or field == "cache_write_tokens" or (sampled and field in ("text", "content"))


def fold(events):
    """A stream as one document: for each choice what its chunks say together.

    Neither server promises a chunk a token (what waits goes out together), nor an order among the choices. The fields
    of a chunk are compared by its kind: the first of a chat, one in the middle, the last of a choice, the usage.
    """
    if all("type" in event for event in events):  # those of /v1/responses: only the text's cuts are free
        deltas = [event for event in events if event["type"].endswith(".delta")]
        others = [event | {"sequence_number": 0} for event in events if event not in deltas]
        shapes = {str(sorted(event)) for event in deltas}
        return {
            "fields": {},
            "others": others,
            "shapes": sorted(shapes),
            "text": "".join(e["delta"] for e in deltas),
        }
    folded = {"choices": {}, "fields": {}, "plain events": [e for e in events if isinstance(e, str)]}
    for event in events:
        if isinstance(event, str):  # `data: [DONE]`
            continue
        fields = set(event)
        for choice in event.get("choices", ()):
            fields |= {f"choices.{key}" for key in choice}
            fields |= {f"delta.{key}" for key in choice.get("delta", ())}
            join(folded["choices"].setdefault(str(choice["index"]), {}), choice)
        seen = folded["fields"].setdefault(kind_of(event), dict.fromkeys(fields, "always"))
        for field in seen.keys() ^ fields:
            seen[field] = "sometimes"
        join(folded, {key: value for key, value in event.items() if key != "choices"})
    return folded


def kind_of(event):
    if not event.get("choices"):
        return "usage"
    choice = event["choices"][0]
    if choice.get("finish_reason"):
        return "last"
    return "first" if "role" in choice.get("delta", ()) else "middle"


def join(whole, piece):
    """Add a chunk to what came before: text and lists go on, of all else the newest value counts."""
    for key, value in piece.items():
        before = whole.get(key)
        if isinstance(value, dict):
            whole[key] = before or {}
            join(whole[key], value)
        elif isinstance(value, list):
            whole[key] = (before or []) + value
        elif key in ("text", "content") and before:
            whole[key] = before + value
        elif value is not None or before is None:
            whole[key] = value
