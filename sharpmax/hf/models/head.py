"""From a causal model's last hidden states to its logits: its head, and what some models do to them afterwards.

    logits = cap·tanh(scale·head(hidden)/cap)

`scale` is Cohere's `logit_scale`, or one over Granite's `logits_scaling`; `cap` is Gemma's. A whole forward pass would
make the logits of every token, which is gigabytes where few are asked for. So the head is called by itself, and a model
that does something else to its logits is refused.
"""

from typing import Any
from weakref import WeakSet

from sharpmax.extras import extra
from sharpmax.hf.sharpen.site import sites_of

with extra("hf"):
    import torch
    from torch import Tensor, nn


def finished(config: Any, logits: Tensor) -> Tensor:
    """Return the logits that the model would, from those of its head; `config` is the model's."""
    text = config.get_text_config()
    if (scale := getattr(text, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(text, "logits_scaling", None)) is not None:
        logits = logits / divisor
    cap = getattr(text, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits


@torch.no_grad()
def require_known_head(model: Any) -> None:
    """Refuse a causal model whose logits are more than `finished` makes of its head; eight tokens tell, once a model.

    Raises:
        NotImplementedError: losses and answers would be another model's.
    """
    if hasattr(model, "get_base_model"):
        raise NotImplementedError(
            f"{type(model).__name__} wraps a model with an adapter, and losses and answers are read off a bare model: "
            "merge it first, model.merge_and_unload()"
        )
    if not isinstance(getattr(model.get_output_embeddings(), "weight", None), Tensor):
        raise NotImplementedError(
            f"the head of {type(model).__name__} has no weight that is a tensor, as where it is quantised: quantise "
            "the rest alone"
        )
    if model in _known or any(not site.is_alone for site in sites_of(model)):  # an observer would be told of it
        return
    was_training = model.training
    model.eval()
    try:
        ids = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
        whole = model(input_ids=ids, use_cache=False).logits[0].float()
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        ours = finished(model.config, model.get_output_embeddings()(hidden).float())
    finally:
        model.train(was_training)
    if whole.shape != ours.shape or not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3 * float(whole.abs().max())):
        raise NotImplementedError(
            f"{type(model).__name__} does more to its logits than its head does; its losses and answers would be "
            "those of another model"
        )
    _known.add(model)


_known: WeakSet[nn.Module] = WeakSet()
