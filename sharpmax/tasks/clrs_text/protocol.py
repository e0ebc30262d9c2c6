"""The published protocol of CLRS-Text: which lengths of each algorithm are trained on, and which are asked.

These are the defaults of `generate_clrs_text.py` in dm-clrs 2.0.3, "the same parameters which were used in" the paper
(arXiv 2406.04229). Training lengths are sparse; every length from 4 to each algorithm's own longest is asked. So a
question is of one of three kinds:

    trained         a length that was trained on
    interpolation   an unseen length below the longest that was trained on
    extrapolation   a longer one
"""

from sharpmax.tasks.clrs_text.examples import SHORTEST, require_known

LADDER = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)
"""Training lengths; each algorithm has those up to its own longest."""

LONGEST_TRAINED = {
    "activity_selector": 31, "articulation_points": 19, "bellman_ford": 31, "bfs": 31, "binary_search": 31,
    "bridges": 5, "bubble_sort": 10, "dag_shortest_paths": 19, "dfs": 23, "dijkstra": 28,
    "find_maximum_subarray_kadane": 31, "floyd_warshall": 10, "graham_scan": 31, "heapsort": 10, "insertion_sort": 31,
    "jarvis_march": 12, "kmp_matcher": 31, "lcs_length": 10, "matrix_chain_order": 10, "minimum": 31,
    "mst_kruskal": 10, "mst_prim": 28, "naive_string_matcher": 31, "optimal_bst": 10, "quickselect": 31,
    "quicksort": 10, "segments_intersect": 31, "strongly_connected_components": 15, "task_scheduling": 31,
    "topological_sort": 23,
}  # fmt: skip

LONGEST_ASKED = {
    "activity_selector": 40, "articulation_points": 19, "bellman_ford": 32, "bfs": 41, "binary_search": 64,
    "bridges": 7, "bubble_sort": 11, "dag_shortest_paths": 19, "dfs": 20, "dijkstra": 25,
    "find_maximum_subarray_kadane": 64, "floyd_warshall": 11, "graham_scan": 31, "heapsort": 11, "insertion_sort": 25,
    "jarvis_march": 13, "kmp_matcher": 64, "lcs_length": 12, "matrix_chain_order": 12, "minimum": 64,
    "mst_kruskal": 10, "mst_prim": 26, "naive_string_matcher": 64, "optimal_bst": 10, "quickselect": 64,
    "quicksort": 12, "segments_intersect": 64, "strongly_connected_components": 16, "task_scheduling": 41,
    "topological_sort": 21,
}  # fmt: skip

TRAINED, INTERPOLATION, EXTRAPOLATION = "trained", "interpolation", "extrapolation"
SPANS = (TRAINED, INTERPOLATION, EXTRAPOLATION)


def trained_lengths(algorithm: str) -> tuple[int, ...]:
    """Return the lengths that the published training set has of the algorithm.

    >>> trained_lengths("bubble_sort")
    (4, 5, 10)
    """
    require_known(algorithm, SHORTEST)
    return tuple(length for length in LADDER if length <= LONGEST_TRAINED[algorithm])


def asked_lengths(algorithm: str) -> tuple[int, ...]:
    """Return the lengths that the published validation set has of the algorithm."""
    require_known(algorithm, SHORTEST)
    return tuple(range(SHORTEST, LONGEST_ASKED[algorithm] + 1))


def span_of(algorithm: str, length: int) -> str:
    """Return which of `SPANS` a length of the algorithm is in.

    >>> [span_of("minimum", length) for length in (10, 20, 40)]
    ['trained', 'interpolation', 'extrapolation']
    """
    require_known(algorithm, length)
    if length in trained_lengths(algorithm):
        return TRAINED
    return INTERPOLATION if length < LONGEST_TRAINED[algorithm] else EXTRAPOLATION
