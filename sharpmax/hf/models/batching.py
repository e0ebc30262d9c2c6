"""Many prompts through transformers' continuous batching, greedily: what is answered, and how long that takes."""

from collections.abc import Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

from sharpmax.extras import extra

with extra("hf"):
    from transformers import ContinuousBatchingConfig, GenerationConfig

PAGE = 256  # keys in a page; transformers' own
AT_ONCE = 2048  # tokens of all requests in one step


class Round(NamedTuple):
    """What was answered to each prompt, in order, and the seconds from the first request to the last token."""

    answers: list[list[int]]
    seconds: float


def answered(
    model: Any, rounds: Sequence[Sequence[list[int]]], *, new_tokens: int, seconds: float = float("inf"),
    patience: float = 60.0, graphs: bool | None = None,
) -> list[Round]:  # fmt: skip
    """Answer one round of prompts after another, by one manager; none is begun after `seconds`, but for the first.

    Every answer has `new_tokens` tokens. The cache is as large as one round needs, not most of the memory. In the first
    round kernels are compiled and CUDA graphs are captured; later ones are a server at work. `graphs` chooses whether
    steps are CUDA graphs; transformers does unless given.

    Raises:
        ArithmeticError: a request failed, or had no answer within `patience` seconds.
    """
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    blocks = max(sum(-(-(len(prompt) + new_tokens) // PAGE) + 1 for prompt in prompts) for prompts in rounds)
    batching = ContinuousBatchingConfig(
        num_blocks=blocks, max_batch_tokens=AT_ONCE, page_size=PAGE, auto_switch_to_flash=False, use_cuda_graph=graphs
    )
    found: list[Round] = []
    options = {"generation_config": greedy, "continuous_batching_config": batching}
    began = perf_counter()
    with model.continuous_batching_context_manager(**options) as manager:
        for prompts in rounds:
            if found and perf_counter() - began > seconds:
                break
            started = perf_counter()
            with manager.pause() if hasattr(manager, "pause") else nullcontext():  # so that steps do not hang on timing
                names = manager.add_requests(list(prompts), max_new_tokens=new_tokens)
            answers = {}
            for _ in names:
                one = manager.get_result(timeout=patience)
                if one is None or one.error or len(one.generated_tokens) != new_tokens:
                    why = getattr(one, "error", None) or manager.background_thread_status.fatal_error
                    raise ArithmeticError(
                        f"a request of continuous batching did not get its tokens: {why or 'no word'}"
                    )
                answers[one.request_id] = list(one.generated_tokens)
            found.append(Round([answers[name] for name in names], perf_counter() - started))
    return found
