"""Matrix products of a stated precision, the same on every device.

Hardware rounds the *operands* of a product (TF32 keeps 10 bits of the mantissa, bfloat16 keeps 7) and accumulates in
float32. Rounding the operands ourselves and multiplying in full precision gives those results anywhere, so the cost of
a precision can be measured without the hardware that has it.
"""

from sharpmax.extras import extra

with extra("jax"):
    import jax.numpy as jnp
    from jax import Array, lax

MANTISSA_BITS = {"float32": None, "tf32": 10, "bfloat16": 7}
_EXPONENT_BITS = 8
UNTUNED = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Options of `jax.jit` for small products: on a GPU, XLA would time dozens of kernels for each, longer than the run."""


def product(subscripts: str, a: Array, b: Array, products: str = "float32") -> Array:
    """Return the einsum of two operands rounded as `products` says, accumulated in full precision."""
    bits = MANTISSA_BITS[products]
    if bits is not None:
        a, b = (lax.reduce_precision(x, _EXPONENT_BITS, bits) for x in (a, b))
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)
