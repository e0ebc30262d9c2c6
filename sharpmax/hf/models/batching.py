"""Many prompts through transformers' continuous batching, greedily, and how long that takes."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from sharpmax.extras import extra

with extra("hf"):
    from transformers import ContinuousBatchingConfig, GenerationConfig

PAGE = 256  # keys in a page; transformers' own
AT_ONCE = 2048  # tokens of all requests in one step


def seconds_to_answer(model: Any, prompts: Sequence[list[int]], *, new_tokens: int, patience: float = 300.0) -> float:
    """Return the seconds from the first request to the last token; the manager is made and warm before.

    Every answer has `new_tokens` tokens. The cache is as large as these prompts need, not most of the memory.

    Raises:
        ArithmeticError: a request did not get its tokens within `patience` seconds.
    """
    greedy = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    blocks = sum(-(-(len(prompt) + new_tokens) // PAGE) + 1 for prompt in prompts)
    batching = ContinuousBatchingConfig(
        num_blocks=blocks, max_batch_tokens=AT_ONCE, page_size=PAGE, auto_switch_to_flash=False
    )
    options = {"generation_config": greedy, "continuous_batching_config": batching}
    with model.continuous_batching_context_manager(**options) as manager:
        started = perf_counter()
        manager.add_requests(list(prompts), max_new_tokens=new_tokens)
        done = [manager.get_result(timeout=patience) for _ in prompts]
        taken = perf_counter() - started
    if any(one is None or len(one.generated_tokens) != new_tokens for one in done):
        raise ArithmeticError("a request of continuous batching did not get its tokens")
    return taken
