"""A conversation with a model, in the terminal, on the engine of this course.

    lab chat --model tales
    echo "Who lives in the wood?" | lab chat > answer.txt

An answer is shown as it is written. After it follows its cost: the time to its first token, and how much of the prompt
the prefix cache saved (the prompt of a turn is the whole conversation so far). /help lists what else can be said.
"""

import argparse

from labkit.errors import LabError
from labkit.foreign import visible
from labkit.models import find_model
from labkit.options import Parser, between, whole
from labkit.terminal import run
from phase1_tokens_embeddings.weights.gguf_model import load_chat_template
from phase2_attention_kvcache.model import SamplingParams
from phase2_attention_kvcache.quantization.quantized_formats import METHODS
from phase4_scheduler.engine import LLMEngine
from phase4_scheduler.features.conversation import Conversation, ends_of_answers
from phase4_scheduler.story.chat_terminal import ChatTerminal


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lab chat", description=__doc__, allow_abbrev=False
    )  # fmt: skip
    add = parser.add_argument
    add("--model", default="tales", metavar="NAME", help="tales (the default), a model folder, a .gguf file, or a name that `lab fetch` has fetched")  # fmt: skip
    add("--system", default="", metavar="TEXT", help="what the model is told first, of how to answer")
    add("--temperature", type=between(0, 100), default=0.7, help="0: always the likeliest token (0.7)")
    add("--tokens", type=whole(1, 10**6), default=512, help="most tokens of an answer (512)")
    add("--seed", type=whole(0, 2**32 - 1), help="the same seed gives the same answers (none)")
    add("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"], help="number format of the weights (bfloat16)")  # fmt: skip
    add(
        "--device", default="auto", choices=["auto", "cpu", "cuda"], help="auto: a GPU if there is one (auto)"
    )
    add("--quantization", choices=METHODS, help="keep the weights in few bits (as the files have them)")
    add(
        "--max-model-len", type=whole(32, 10**6), help="longest conversation, in tokens (the model's context)"
    )
    add("--no-thinking", action="store_true", help="a model that thinks aloud first, such as Qwen3, answers at once")  # fmt: skip
    return parser


def chat(a: argparse.Namespace) -> int:
    folder = find_model(a.model)
    template = load_chat_template(folder)
    if template is None:
        raise LabError(
            f"{visible(a.model)} has no chat template: it was trained on no conversations; tell_story.py lets it go on "
            "with a text"
        )
    engine = LLMEngine.from_pretrained(
        folder, dtype=a.dtype, device=a.device, max_num_seqs=1, max_model_len=a.max_model_len, quantization=a.quantization
    )  # fmt: skip
    if engine.tokenizer is None:
        raise LabError(f"{visible(folder)} holds no tokenizer.json: a chat needs one")
    params = SamplingParams(
        temperature=a.temperature, top_p=0.95, max_tokens=a.tokens, seed=a.seed,
        **ends_of_answers(template, engine.tokenizer),
    )  # fmt: skip
    engine.generate([[0]], SamplingParams(max_tokens=2))  # the first steps compile: no turn waits for that
    thinking = {"enable_thinking": False} if a.no_thinking else {}
    conversation = Conversation(engine, template, params, **thinking)
    conversation.system = a.system
    terminal = ChatTerminal(conversation)
    terminal.note(
        f"{visible(a.model)}, {engine.model.device.type}, {a.dtype}. /help lists commands, Ctrl-D ends"
    )
    terminal.run()
    return 0


def main(argv: list[str] | None = None) -> int | None:
    return run(lambda: chat(build_parser().parse_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main())
