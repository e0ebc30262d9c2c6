"""Walking tiles on a Hopper GPU, by Pallas in its Mosaic lowering: one warpgroup fetches, the others compute.

A program holds rows of one array, some a warpgroup, while the blocks of another pass through shared memory: queries
are held and keys pass, or the other way round. The copy engine fills some slots ahead; a slot is filled again once
every warpgroup has given it back. While one warpgroup multiplies, another exponentiates. Where the warpgroups of the
last program outnumber the rows left, some compute the same rows, and write the same numbers.

A tile is <q, k> of (rows held, rows passing), NOTHING where masked; its scale is left to the multiply-add that follows.
Numbers of the queries, if a kernel needs them, come with whichever of the two the queries are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sharpmax.jax.block_padding import padded, whole
from sharpmax.jax.pallas.tiles import NOTHING, Tiles

HELD, PASSING = 64, 128  # rows that a warpgroup holds; rows of a block that passes, a multiple of that
SLOTS = 4  # blocks in shared memory
REGISTERS = {2: (232, 40), 4: (112, 32)}  # of a computing and of the fetching thread, by computing warpgroups
WIDTHS = (64, 128)  # widths of a head: whole 128-byte rows for the copy engine, and room for the blocks
SCALES = (2.0**-60, 2.0**20)  # of a logit: positive, for a row's largest product is its maximum; NOTHING stays nothing


def serves(width: int, scale: float) -> bool:
    """Tell whether the kernels compute heads of this width and logits of this scale."""
    return width in WIDTHS and SCALES[0] <= scale <= SCALES[1]


def walking(tiles: Tiles, *, keys_held: bool = False) -> Tiles:
    """Return the tiles of a walk."""
    q, k = (PASSING, HELD) if keys_held else (HELD, PASSING)
    return replace(tiles, block_q=q, block_k=k)


class Work(NamedTuple):
    """What a kernel makes of the tiles it visits."""

    start: Callable[[int], Any]  # rows -> their state
    see: Callable[[Array, Any, Any, Any], Any]  # (tile, state, the block that passes, numbers) -> state
    finish: Callable[[Any, Any], None]  # (state, references of a warpgroup's results in shared memory)
    rows: int  # how many results have one number per row; with none, the result is one array like the one held


def walk(
    name: str,
    work: Work,
    tiles: Tiles,
    *,
    warpgroups: int,
    q: Array,
    k: Array,
    numbers: Array | None = None,
    keys_held: bool = False,
) -> list[Array]:
    """Run a kernel over q (B, Lq, H, D) and k (B, Lk, Hkv, D), with numbers (B, H, n, Lq) of the queries.

    So many warpgroups compute, and one more fetches. The tiles are those of `walking`. A key that is held sees the
    queries of every head that shares it. Returns results of one number per row as (B, heads, L), or one array like what
    is held.
    """
    rows, block = (tiles.block_k, tiles.block_q) if keys_held else (tiles.block_q, tiles.block_k)
    step = warpgroups * rows  # rows that a program holds
    length = tiles.keys if keys_held else tiles.queries
    q, k = (padded(x, 1, whole(x.shape[1], PASSING)) for x in (q, k))
    held, passing = (k, q) if keys_held else (q, k)
    programs = -(-held.shape[1] // step)
    counted = 0
    if numbers is not None:
        counted, numbers = numbers.shape[2], padded(numbers, 3, q.shape[1])
    visits = tiles.queries_seeing if keys_held else tiles.keys_seen
    heads_passing = tiles.groups if keys_held else 1

    def kernel(*refs: Any) -> None:
        held_ref, passing_ref, *refs = refs  # type: ignore[assignment]
        numbers_ref, *refs = refs if counted else (None, *refs)  # type: ignore[assignment]
        outputs, (held_smem, passing_smem, numbers_smem, rows_smem, held_ready, ready, used) = refs[:-7], refs[-7:]
        results_smem = rows_smem or [held_smem]  # a sum of products takes the place of what was held
        b, head, thread = (lax.axis_index(axis) for axis in ("batch", "heads", "thread"))
        program = lax.axis_index("rows")
        program = program if keys_held else programs - 1 - program  # causal: those with the most to do come first
        start, _, _, stop = visits(program * step, step)

        def visit(g: Any, t: Any) -> tuple[Any, Any]:
            """How many blocks came before this one, and the slot it is in."""
            before = g * (stop - start) + t - start
            return before, lax.rem(before, jnp.int32(SLOTS))

        @pl.when(thread < warpgroups)
        def _compute() -> None:
            _set_registers(REGISTERS[warpgroups][0], "increase", tiles)
            first = jnp.minimum(program * step + thread * rows, held.shape[1] - rows)
            mine = pl.ds(first, rows)
            plgpu.copy_gmem_to_smem(held_ref.at[b, mine, head], held_smem.at[thread], held_ready.at[thread])
            if counted and not keys_held:
                for n in range(counted):
                    numbers_of_mine = numbers_ref.at[b, head, n, mine]
                    plgpu.copy_gmem_to_smem(numbers_of_mine, numbers_smem.at[thread, n], held_ready.at[thread])
            plgpu.barrier_wait(held_ready.at[thread])
            of_held = None if keys_held or not counted else _loaded(numbers_smem, thread, counted, 1, tiles)
            low, inner_low, inner_high, high = visits(first, rows)

            def skip(g: Any, t: Any, state: Any) -> Any:
                _, slot = visit(g, t)
                plgpu.barrier_wait(ready.at[slot])
                plgpu.barrier_arrive(used.at[slot])
                return state

            def see(g: Any, t: Any, state: Any, *, masked: bool) -> Any:
                _, slot = visit(g, t)
                plgpu.barrier_wait(ready.at[slot])
                tile = _product(held_smem.at[thread], passing_smem.at[slot], tiles)
                if masked:
                    tile = _hidden(tile, first, t * block, tiles, keys_held=keys_held)
                of_rows = _loaded(numbers_smem, slot, counted, 0, tiles) if counted and keys_held else of_held
                state = work.see(tile, state, passing_smem.at[slot], of_rows)
                plgpu.barrier_arrive(used.at[slot])
                return state

            def of_head(g: Any, state: Any) -> Any:
                lax.fori_loop(start, low, lambda t, _: skip(g, t, _), None)
                state = lax.fori_loop(low, inner_low, lambda t, s: see(g, t, s, masked=True), state)
                state = lax.fori_loop(inner_low, inner_high, lambda t, s: see(g, t, s, masked=False), state)
                state = lax.fori_loop(inner_high, high, lambda t, s: see(g, t, s, masked=True), state)
                lax.fori_loop(high, stop, lambda t, _: skip(g, t, _), None)
                return state

            state = work.start(rows)
            state = of_head(0, state) if heads_passing == 1 else lax.fori_loop(0, heads_passing, of_head, state)
            work.finish(state, [ref.at[thread] for ref in results_smem])
            plgpu.commit_smem()
            for output, found in zip(outputs, results_smem, strict=True):
                place = output.at[b, head, mine] if len(output.shape) == 3 else output.at[b, mine, head]
                plgpu.copy_smem_to_gmem(found.at[thread], place)
            plgpu.wait_smem_to_gmem(0)

        @pl.when(thread == warpgroups)
        def _fetch() -> None:
            _set_registers(REGISTERS[warpgroups][1], "decrease", tiles)

            def load(g: Any, t: Any) -> None:
                before, slot = visit(g, t)
                pl.when(before >= SLOTS)(lambda: plgpu.barrier_wait(used.at[slot]))
                part = pl.ds(t * block, block)
                other = head * tiles.groups + g if keys_held else lax.div(head, jnp.int32(tiles.groups))
                plgpu.copy_gmem_to_smem(passing_ref.at[b, part, other], passing_smem.at[slot], ready.at[slot])
                if counted and keys_held:
                    plgpu.copy_gmem_to_smem(numbers_ref.at[b, other, :, part], numbers_smem.at[slot], ready.at[slot])

            @pl.loop(0, heads_passing)
            def _of_head(g: Any) -> None:
                pl.loop(start, stop)(lambda t: load(g, t))

            for slot in range(SLOTS):  # until the last of each is given back
                pl.when(heads_passing * (stop - start) > slot)(partial(plgpu.barrier_wait, used.at[slot]))

    batch, _, heads, width = held.shape

    of_rows = jax.ShapeDtypeStruct((batch, heads, held.shape[1]), jnp.float32)
    like_held = jax.ShapeDtypeStruct(held.shape, held.dtype)
    swizzled: Any = {"transforms": (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))}
    found = plgpu.kernel(
        kernel,
        out_type=[of_rows] * work.rows or [like_held],
        grid=(programs, heads, batch),
        grid_names=("rows", "heads", "batch"),
        num_threads=warpgroups + 1,
        thread_name="thread",
        scratch_types=[
            plgpu.SMEM((warpgroups, rows, width), held.dtype, **swizzled),
            plgpu.SMEM((SLOTS, block, width), passing.dtype, **swizzled),
            plgpu.SMEM((SLOTS, counted, block) if keys_held else (warpgroups, max(counted, 1), rows), jnp.float32),
            [plgpu.SMEM((warpgroups, rows), jnp.float32)] * work.rows,
            plgpu.Barrier(num_arrivals=1 if keys_held else 1 + counted, num_barriers=warpgroups),
            plgpu.Barrier(num_arrivals=2 if keys_held and counted else 1, num_barriers=SLOTS),
            plgpu.Barrier(num_arrivals=warpgroups, num_barriers=SLOTS),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=_interpreter() if tiles.interpret else None,
        kernel_name=name,
    )(held, passing, *(() if numbers is None else (numbers,)))
    return [array[:, :, :length] if array.ndim == 3 else array[:, :length] for array in found]


def across(numbers: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Repeat one number per row (axis 0) or per column (axis 1) over a tile."""
    return lax.broadcast_in_dim(numbers, shape, [axis])


def one_a_row(number: float, rows: int, tiles: Tiles) -> Array:
    """Return a number for each row of a tile, laid out as the sum of its columns is."""
    filled = jnp.full((rows,), number, jnp.float32)
    return filled if tiles.interpret else plgpu.layout_cast(filled, plgpu.Layout.WGMMA.reduce(1))


def nothing_summed(rows: int, width: int, tiles: Tiles) -> Array:
    """Return zeros (rows, width), laid out as a sum of products is."""
    zeros = jnp.zeros((rows, width), jnp.float32)
    return zeros if tiles.interpret else plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)


def add_product(total: Array, tile: Array, block: Any, tiles: Tiles) -> Array:
    """Return total + tile·block, the tile from registers and the block from shared memory."""
    if tiles.interpret:
        return total + jnp.dot(tile, block[...], preferred_element_type=jnp.float32)

    def multiply(sums: Any) -> None:
        plgpu.wgmma(sums, tile, block)

    summed: Array = pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(total))
    return summed


def _product(held: Any, block: Any, tiles: Tiles) -> Array:
    """Return held·blockᵀ of two references in shared memory."""
    if tiles.interpret:
        return lax.dot_general(held[...], block[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    def multiply(sums: Any) -> Any:
        plgpu.wgmma(sums, held, block.transpose((1, 0)))
        return sums[...]

    tile: Array = pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((held.shape[0], block.shape[0]), jnp.float32))
    return tile


def _hidden(tile: Array, row: Any, column: Any, tiles: Tiles, *, keys_held: bool) -> Array:
    """Put NOTHING where the key is hidden from the query; `row` and `column` are the tile's first of each."""

    def index(axis: int) -> Any:
        if tiles.interpret:
            return lax.broadcasted_iota(jnp.int32, tile.shape, axis)
        return plgpu.broadcasted_iota(jnp.int32, tile.shape, axis, layout=plgpu.Layout.WGMMA)

    query, key, apart = (index(1), index(0), column - row) if keys_held else (index(0), index(1), row - column)
    behind, apart = query - key, apart + tiles.offset
    if tiles.right is not None:
        tile = jnp.where(behind >= -tiles.right - apart, tile, NOTHING)
    if tiles.left is not None:
        tile = jnp.where(behind <= tiles.left - apart, tile, NOTHING)
    if tiles.keys % tiles.block_k and not keys_held:
        tile = jnp.where(key < tiles.keys - column, tile, NOTHING)
    return tile


def _loaded(smem: Any, place: Any, counted: int, summed: int, tiles: Tiles) -> list[Array]:
    """Load numbers as a tile's sums over one of its axes lie."""
    if tiles.interpret:
        return [smem[place, n] for n in range(counted)]
    layout = plgpu.Layout.WGMMA.reduce(summed)
    return [plgpu.layout_cast(smem[place, n], layout) for n in range(counted)]


def _set_registers(number: int, action: Any, tiles: Tiles) -> None:
    if not tiles.interpret:
        plgpu.set_max_registers(number, action=action)


def _interpreter() -> Any:
    # Before 0.11, JAX has it but does not export it.
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams()
