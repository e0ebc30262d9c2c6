"""Continuous batching: `model.generate_batch(…)` and its manager inside `sharpen`.

The manager takes attention only by names that it knows. Ours, while a manager is on, has `flash` in it, which tells the
manager to make no mask and to say where each sequence begins: that is what paged attention needs.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sharpmax.extras import extra
from sharpmax.hf.sharpen.interface import interface_attention
from sharpmax.hf.sharpen.layers import configs_of
from sharpmax.hf.sharpen.paged import must_read_pages

with extra("hf"):
    from transformers import ContinuousBatchingConfig

PAGED_NAME = "sharpmax_paged_flash"
"""Our name while a manager is on. No digit in it: with one, transformers asks for a package of that version."""

NAMES = "_attn_implementation_internal"
"""Where a config keeps the name of its attention."""


@dataclass(eq=False)
class Beginning:
    """What `init_continuous_batching` of a sharpened model does: begin under our name, until the manager is stopped.

    A class, not a closure: a copy of the model gets one of its own.
    """

    model: Any
    ours: str  # the name that a sharpened config carries otherwise
    managers: list[Any]  # those that are on
    by_host: bool = False  # whether the host takes part in every call: in a CUDA graph it does in none

    def __call__(
        self, generation_config: Any = None, continuous_batching_config: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Return the manager that transformers makes."""
        must_read_pages()
        model = self.model
        configs = [config for config in configs_of(model) if config.__dict__.get(NAMES) in (self.ours, PAGED_NAME)]
        if not any(config is model.config for config in configs):
            raise NotImplementedError(
                f"{type(model).__name__} attends eagerly only, and continuous batching needs more; call model.generate"
            )

        def name(to: str) -> None:
            for config in configs:
                config.__dict__[NAMES] = to

        if self.by_host:
            continuous_batching_config = copy(continuous_batching_config or ContinuousBatchingConfig())
            continuous_batching_config.use_cuda_graph = False
        name(PAGED_NAME)
        try:
            manager = type(model).init_continuous_batching(
                model, generation_config, continuous_batching_config, *rest, **options
            )
        except BaseException:
            name(self.ours)
            raise
        stop = type(manager).stop

        def stop_and_name(*arguments: Any, **options: Any) -> None:
            try:
                stop(manager, *arguments, **options)
            finally:
                name(self.ours)
                if _kept(manager) is not manager and manager in self.managers:
                    self.managers.remove(manager)

        manager.stop = stop_and_name
        if manager not in self.managers:
            self.managers.append(manager)
        return manager


def _kept(manager: Any) -> Any:
    """Return the manager that a manager's model keeps for the next time, if any."""
    return getattr(manager.model, "_cached_continuous_batching_manager", None)


def end_all(managers: list[Any]) -> None:
    """Stop every manager that is on: without the policy, and under another name, it would attend without a mask."""
    for manager in managers[:]:
        if manager.is_running():
            manager.stop(block=True, hard_stop=True)
        if _kept(manager) is manager:
            manager.model.destroy_cached_continuous_batching_manager()
    managers.clear()


def batched_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, cache: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend as `interface_attention`, with the cache of a manager: nobody else may call a model that one has."""
    if cache is None:
        raise RuntimeError(
            "a continuous batching manager is on in this model, which leaves every mask out: stop the manager before "
            "the model is called in another way"
        )
    return interface_attention(module, query, key, value, attention_mask, cache=cache, **options)


def no_mask(*_: Any, **__: Any) -> None:
    """Make no mask: paged attention knows from the lengths what is visible."""
