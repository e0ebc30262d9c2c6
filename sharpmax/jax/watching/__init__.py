"""Watch attention while a JAX model trains, and clip what grows: Flax, Equinox or functions of one's own; Optax.

`sharpmax.jax.collecting` collects, `sharpmax.jax.reading_of` reads; `sharpmax.jax.watching.clip.qk_clip` needs Optax.
"""
