"""The way into the engine for exercise 4.4: the steps in which it hands out answers, beside the learner's."""

from collections.abc import Callable

from exercises.judging.engine_runs import passed, same_or_stop, tales
from phase4_scheduler.engine import EngineConfig, LLMEngine
from phase4_scheduler.simulator import Job, serve_continuously, serve_statically


def predict_the_engine(static: Callable, continuous: Callable) -> None:
    """Exercise 4.4: the learner's step numbers beside the engine's."""
    passed("p4e4_static_continuous", static, continuous)
    lengths, max_num_seqs = [20, 3, 28, 9, 14, 5, 22], 3
    predicted = {
        "static": static(list(lengths), max_num_seqs),
        "continuous": continuous(list(lengths), max_num_seqs),
    }
    model, tokenizer = tales()
    engine = LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=max_num_seqs, num_blocks=100))
    jobs = [Job(str(i), [100 + i], length) for i, length in enumerate(lengths)]
    served = {
        "static": serve_statically(engine, jobs, max_num_seqs, pad=False),
        "continuous": serve_continuously(engine, jobs),
    }
    print(f"max_num_seqs {max_num_seqs}, answers of {lengths} tokens")
    for way, run in served.items():
        measured = [run.done_step[job.name] for job in jobs]
        same_or_stop(
            predicted[way], measured, f"{way}: the engine hands answers out in other steps than you say"
        )
        print(f"{way:>10}: {measured}, as you said; {run.steps} steps in all")
    same = served["static"].token_ids == served["continuous"].token_ids
    print("The answers are the same in both ways." if same else "The answers differ!")
