"""sharpmax in JAX: importing this makes every policy a pytree whose learnable fields are its leaves."""

from sharpmax.jax.pytrees import register_policies

__all__ = ["register_policies"]

register_policies()
